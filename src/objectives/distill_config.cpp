#include "objectives/distill_config.hpp"

#include "core/deck/deck.hpp"

namespace llmtrain {

void DistillConfig::visit(DeckKeys& keys) {
  keys.section("distill", "Learn the distributions of a teacher (run.task = distill).", Change::breaks, {Task::distill},
               true);
  keys.key("teacher", teacher,
           {.doc = "Folder of the teacher: a Hugging Face model of any family, size and precision, with the student's "
                   "tokenizer.",
            .required = true});
  keys.key(
      "loss", loss,
      {.doc = "Divergence of the student q from the teacher p. forward_kl: sum over tokens of p log(p / q). "
              "reverse_kl: of q log(q / p). jsd: the generalised Jensen-Shannon divergence of TRL's GKD, with beta. "
              "A mean over trained tokens."});
  keys.key<Fp32Number>("beta", beta,
                       {.range = between(0, 1),
                        .doc = "Weight of the teacher in the mixture of jsd. 0 is forward_kl, 1 is reverse_kl."});
  keys.key<Fp32Number>(
      "temperature", temperature,
      {.range = above(0), .doc = "Divisor of the logits of both models. The loss is not multiplied with its square."});
  keys.key("top_k", top_k,
           {.unit = "tokens",
            .range = between(0, 4096),
            .doc = "The loss regards the teacher's k most probable tokens, with their probabilities renormalised; the "
                   "student's are over all tokens. 0: all tokens."});
  keys.key("tail", tail,
           {.doc = "With top_k: probabilities are not renormalised; all other tokens together are one more token."});
  keys.key("cache", cache,
           {.doc = "Compute the teacher's log-probabilities once, before training, and keep them in data.cache: 8 "
                   "top_k + 8 bytes of each trained token, or 4 for each token of the vocabulary. false: the teacher "
                   "runs with every step.",
            .change = Change::nothing});
  keys.key<Fp32Number>("cross_entropy", cross_entropy,
                       {.range = at_least(0), .doc = "Factor of the cross-entropy of the data, which the loss adds."});
  keys.key("on_policy", on_policy,
           {.range = between(0, 1),
            .doc = "Fraction of the steps in which the student learns from completions that it has sampled, by "
                   "[rollout], for the prompts of the step's conversations (lmbda of TRL's GKD)."});
}

void DistillConfig::resolve(DeckLoader& deck) {
  if (loss != Divergence::jsd) deck.unused("distill.beta", "only distill.loss = jsd has it");
  deck.check(!tail || top_k > 0, {"distill.tail", "distill.top_k"}, "needs distill.top_k above 0");
  const bool reverse = loss == Divergence::reverse_kl || (loss == Divergence::jsd && beta == 1);
  deck.check(!reverse || top_k == 0 || tail, {"distill.top_k", "distill.loss"},
             "the reverse divergence from tokens that the teacher leaves out is infinite: set distill.tail = true, or "
             "another distill.loss");
}

DistillationTerms DistillConfig::terms() const {
  return {loss, static_cast<float>(beta), static_cast<float>(temperature), tail, static_cast<float>(cross_entropy)};
}

}  // namespace llmtrain
