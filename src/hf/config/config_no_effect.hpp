#pragma once
// Keys of config.json that Transformers (or an older version) reads or writes, and that do not change the model's
// mathematics. They are ignored silently; a warning names keys that are in none of the lists. Spaces separate the
// names.

#include <string_view>

namespace llmtrain {

/// Keys of PreTrainedConfig, the base class of every family.
inline constexpr std::string_view no_effect_base =
    "_attn_implementation _attn_implementation_autoset _attn_implementation_internal _commit_hash "
    "_experts_implementation _flash_attn_2_enabled _name_or_path attn_implementation attribute_map "
    "base_model_ep_plan base_model_pp_plan base_model_tp_plan chunk_size_feed_forward cls_token_id "
    "cross_attention_hidden_size decoder_start_token_id dtype eos_token_ids experts_implementation "
    "finetuning_task has_no_defaults_at_init id2label is_composition is_decoder keys_to_ignore_at_inference "
    "label2id loss_type mask_token_id model_parallel name_or_path num_labels output_attentions "
    "output_hidden_states prefix problem_type return_dict sep_token_id task_specific_params tf_legacy_loss "
    "tie_encoder_decoder tokenizer_class torch_dtype torchscript transformers_version unk_token_id "
    "xla_device";

/// Settings of generate(), which older versions kept in config.json, and of training.
inline constexpr std::string_view no_effect_generation =
    "assistant_confidence_threshold attention_dropout attn_pdrop bad_words_ids begin_suppress_tokens "
    "cache_implementation classifier_dropout diversity_penalty do_sample early_stopping embd_pdrop "
    "encoder_no_repeat_ngram_size epsilon_cutoff eta_cutoff exponential_decay_length_penalty "
    "forced_bos_token_id forced_eos_token_id generation_config gradient_checkpointing guidance_scale "
    "hidden_dropout length_penalty max_length max_new_tokens min_length min_new_tokens min_p "
    "no_repeat_ngram_size num_assistant_tokens num_beam_groups num_beams num_return_sequences output_logits "
    "output_scores penalty_alpha remove_invalid_values renormalize_logits repetition_penalty resid_pdrop "
    "return_dict_in_generate summary_activation suppress_tokens temperature top_k top_p typical_p "
    "use_bfloat16 use_cache use_flash_attn";

/// Keys of single families and of other tools.
inline constexpr std::string_view no_effect_special =
    "_num_labels is_llama_config library_name max_sequence_length model_max_length n_ctx n_special "
    "output_past predict_special_tokens pretraining_tp reorder_and_upcast_attn summary_first_dropout "
    "summary_proj_to_labels summary_type summary_use_proj tokenizer_model_max_length tokenizer_padding_side "
    "transformers.js_config unsloth_fixed unsloth_training unsloth_version use_flash_attention";

/// Keys of rope_scaling and rope_parameters that belong to other kinds than the given one, and keys that nothing reads.
inline constexpr std::string_view no_effect_rope =
    "attention_factor beta_fast beta_slow factor finetuned high_freq_factor long_factor low_freq_factor "
    "mscale mscale_all_dim original_max_position_embeddings short_factor truncate";

}  // namespace llmtrain
