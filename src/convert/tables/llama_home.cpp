// LlamaHome's training_config.
#include "convert/rules.hpp"

namespace llmtrain::convert {
namespace {

constexpr Entry entries[] = {
    derived("training.batch_size", "micro", "batch.micro, batch.global"),
    derived("training.gradient_accumulation_steps", "accumulation", "batch.global"),
    mapped("training.learning_rate", "schedule.learning_rate"),
    derived("training.warmup_steps", "warmup_steps", "schedule.warmup_steps"),
    mapped("training.max_grad_norm", "optimizer.max_grad_norm"),
    derived("training.epochs training.num_epochs", "epochs", "run.epochs"),
    derived("training.max_steps", "max_steps", "run.max_steps"),
    mapped("training.optimizer.name", "optimizer.name", optimizers),
    mapped("training.optimizer.weight_decay", "optimizer.weight_decay"),
    mapped("training.optimizer.beta1", "optimizer.beta1"),
    mapped("training.optimizer.beta2", "optimizer.beta2"),
    mapped("training.optimizer.epsilon training.optimizer.eps", "optimizer.epsilon"),
    mapped("training.scheduler.name", "schedule.name", schedulers),
    mapped("training.scheduler.num_cycles", "schedule.num_cycles"),
    mapped("training.scheduler.power", "schedule.power"),
    derived("distributed.world_size", "world", "batch.global"),
    no_effect(
        "distributed.backend distributed.init_method distributed.rank distributed.master_addr distributed.master_port "
        "distributed.num_nodes distributed.node_rank",
        "mpirun or srun starts the ranks, which find each other"),
    no_effect("monitoring.metrics", "losses, learning rate, memory and times are always logged"),
    mapped("monitoring.visualization.update_frequency", "log.every_steps"),
    derived("monitoring.visualization.export_formats", "sinks", "log.sinks", "png= svg= html",
            "llmtool export-viz writes PNG and SVG"),
    derived("TrainingPipeline.model_name", "model", "model.path"),
    no_effect("TrainingPipeline.model_version TrainingPipeline.config_manager ConfigManager.config_path "
              "train.monitor_performance "
              "Visualizer.output_dir",
              "model.path names a folder; the log has the times"),
    derived("train.train_dataset", "dataset", "data.train"),
    derived("train.val_dataset", "validation_data", "data.validation"),
    no_effect("DistributedTrainer.config distribute_model create_distributed_sampler",
              "mpirun or srun starts the ranks"),
};

}  // namespace

const System llama_home{"llamahome", "LlamaHome", entries};

}  // namespace llmtrain::convert
