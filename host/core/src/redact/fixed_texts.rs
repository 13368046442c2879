//! Texts that Kubernetes' controllers write for every object alike. They contain nothing of an object, so
//! they never quote a secret, whatever the secrets are.

/// Whether the whole of a reason or message is one of these texts.
pub(super) fn is_fixed_text(text: &str) -> bool {
    matches!(
        text,
        // Jobs
        "JobSuspended"
            | "Job suspended"
            | "JobResumed"
            | "Job resumed"
            | "BackoffLimitExceeded"
            | "Job has reached the specified backoff limit"
            | "DeadlineExceeded"
            | "Job was active longer than specified deadline"
            | "CompletionsReached"
            | "Reached expected number of succeeded pods"
            | "SuccessPolicy"
            | "PodFailurePolicy"
            | "FailedIndexes"
            | "MaxFailedIndexesExceeded"
            // Pods and their containers
            | "ContainerCreating"
            | "PodInitializing"
            | "ContainersNotReady"
            | "ContainersNotInitialized"
            | "PodCompleted"
            | "Completed"
            | "OOMKilled"
            | "ContainerCannotRun"
            | "StartError"
            | "CrashLoopBackOff"
            | "ImagePullBackOff"
            | "ErrImagePull"
            | "ErrImageNeverPull"
            | "InvalidImageName"
            | "CreateContainerConfigError"
            | "CreateContainerError"
            | "RunContainerError"
            | "Unschedulable"
            | "SchedulingGated"
            | "Scheduling is blocked due to non-empty scheduling gates"
            | "Evicted"
            | "Preempting"
            | "PreemptionByScheduler"
            | "TerminationByKubelet"
            | "DeletionByTaintManager"
            | "DeletionByPodGC"
            | "EvictionByEvictionAPI"
            | "NodeLost"
            | "NodeShutdown"
            | "Terminated"
            | "UnexpectedAdmissionError"
            // Kueue and JobSet
            | "QuotaReserved"
            | "Admitted"
            | "Preempted"
            | "Inadmissible"
            | "AllJobsCompleted"
            | "FailedJobs"
            | "SuspendedJobs"
            | "ResumeJobs"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_text_is_fixed() {
        assert!(is_fixed_text("Job suspended"));
        for text in ["", "Job suspended ", "Job suspended: hunter22", "job suspended", "hunter22"] {
            assert!(!is_fixed_text(text), "{text}");
        }
    }
}
