//! The plan of one training job: who submits it, where, and what it requests. It is drawn from the seed
//! alone, and says nothing about the job's fate.

use super::rng::SplitMix;

/// The source of a job, kept in the annotation `kubewitness.dev/channel`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitChannel {
    Cli,
    Portal,
}

impl SubmitChannel {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cli => "cli",
            Self::Portal => "portal",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadPlan {
    pub name: String,
    pub namespace: String,
    pub channel: SubmitChannel,
    pub submitter: &'static str,
    pub model: &'static str,
    pub task: &'static str,
    pub dataset: &'static str,
    pub image: String,
    /// The name of the container in each pod.
    pub container: String,
    pub gpus: u64,
    /// How many pods run at the same time.
    pub workers: usize,
    /// Whether it is submitted suspended, for a queue to admit.
    pub queued: bool,
    pub backoff_limit: u32,
    pub deadline_seconds: Option<u64>,
    pub learning_rate: &'static str,
    pub epochs: u64,
}

const MODELS: [&str; 12] = [
    "resnet", "llama", "whisper", "bert", "vit", "mamba", "clip", "gemma", "wavenet", "ranker", "yolo",
    "mixtral",
];
const TASKS: [&str; 7] = ["finetune", "pretrain", "distill", "eval", "sweep", "align", "quantize"];
const DATASETS: [&str; 6] =
    ["imagenet-22k", "commonvoice-17", "fineweb-edu", "laion-aesthetic", "msmarco-v2", "coco-2017"];
const IMAGES: [&str; 4] = [
    "registry.example.com/train/pytorch:2.11-cuda13.1",
    "registry.example.com/train/jax:0.9-cuda13.1",
    "registry.example.com/train/megatron:26.09",
    "registry.example.com/train/axolotl:0.14.2",
];
const CONTAINER: &str = "trainer";
const SUBMITTERS: [&str; 8] = ["ada", "grace", "linus", "barbara", "edsger", "katherine", "alan", "radia"];

impl WorkloadPlan {
    /// Draws job number `index` of this seed. `namespaces` must not be empty.
    pub fn draw(seed: u64, index: u64, namespaces: &[String]) -> Self {
        let mut rng = SplitMix::new(seed, index.wrapping_mul(2));
        let (model, task) = (rng.pick(&MODELS), rng.pick(&TASKS));
        Self {
            name: format!("{model}-{task}-{}", rng.suffix(4)),
            namespace: namespaces[rng.between(0, namespaces.len() as u64 - 1) as usize].clone(),
            channel: if rng.percent(60) { SubmitChannel::Cli } else { SubmitChannel::Portal },
            submitter: rng.pick(&SUBMITTERS),
            model,
            task,
            dataset: rng.pick(&DATASETS),
            image: rng.pick(&IMAGES).to_string(),
            container: CONTAINER.to_owned(),
            gpus: *rng.weighted(&[(40, 1), (20, 2), (20, 4), (20, 8)]),
            workers: *rng.weighted(&[(75, 1), (18, 2), (7, 4)]),
            queued: rng.percent(70),
            backoff_limit: *rng.weighted(&[(15, 0), (35, 1), (30, 2), (20, 4)]),
            deadline_seconds: rng.percent(30).then_some(86_400),
            learning_rate: rng.pick(&["1e-5", "2e-5", "3e-4", "6e-4"]),
            epochs: rng.between(1, 40),
        }
    }

    /// Chooses another name after the first one was taken.
    pub fn rename(&mut self, rng: &mut SplitMix) {
        self.name = format!("{}-{}-{}", self.model, self.task, rng.suffix(6));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_depends_on_seed_and_index_alone() {
        let namespaces = ["team-vision".to_owned(), "team-speech".to_owned()];
        assert_eq!(WorkloadPlan::draw(7, 12, &namespaces), WorkloadPlan::draw(7, 12, &namespaces));
        assert_ne!(WorkloadPlan::draw(7, 12, &namespaces).name, WorkloadPlan::draw(7, 13, &namespaces).name);
    }

    #[test]
    fn both_channels_and_every_namespace_are_used_and_names_are_valid() {
        let namespaces = ["team-vision".to_owned(), "team-speech".to_owned()];
        let plans: Vec<_> = (0..200).map(|index| WorkloadPlan::draw(1, index, &namespaces)).collect();
        for channel in [SubmitChannel::Cli, SubmitChannel::Portal] {
            assert!(plans.iter().any(|plan| plan.channel == channel), "{channel:?}");
        }
        for namespace in &namespaces {
            assert!(plans.iter().any(|plan| &plan.namespace == namespace), "{namespace}");
        }
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        assert!(plans.iter().all(|plan| plan.name.len() <= 40 && plan.name.chars().all(fits)));
    }
}
