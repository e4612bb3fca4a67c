"""Writes schedules.json: difficulties of DeepSpeed's curriculum schedules by step.

    python make_schedule_goldens.py          # with DeepSpeed's deepspeed/runtime/data_pipeline on the path
"""

import json
import pathlib

from deepspeed.runtime.data_pipeline.curriculum_scheduler import CurriculumScheduler

STEPS = [1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 99, 100, 101, 144, 233, 377, 500, 1000, 10000]
CASES = [("fixed_linear", 8, 64, dict(total_curriculum_step=100, difficulty_step=8)),
         ("fixed_linear", 8, 1024, dict(total_curriculum_step=377, difficulty_step=16)),
         ("fixed_linear", 1, 100, dict(total_curriculum_step=500, difficulty_step=1)),
         ("fixed_root", 64, 1024, dict(total_curriculum_step=500, difficulty_step=8, root_degree=2)),
         ("fixed_root", 10, 100, dict(total_curriculum_step=144, difficulty_step=5, root_degree=3)),
         ("fixed_discrete", 1, 3, dict(difficulty=[1, 2, 3], max_step=[5, 10])),
         ("fixed_discrete", 64, 512, dict(difficulty=[64, 128, 512], max_step=[34, 144]))]


def main():
    cases = []
    for kind, least, most, config in CASES:
        scheduler = CurriculumScheduler(dict(min_difficulty=least, max_difficulty=most, schedule_type=kind,
                                             schedule_config=config))
        cases.append({"type": kind, "min": least, "max": most, "config": config,
                      "values": [scheduler.get_difficulty(step) for step in STEPS]})
    (pathlib.Path(__file__).parent / "schedules.json").write_text(json.dumps({"steps": STEPS, "cases": cases}) + "\n")


if __name__ == "__main__":
    main()
