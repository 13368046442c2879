//! The codes of `kubewitness doctor`. They keep their meaning; new ones are added at the end. The pages of
//! `docs/reference/doctor` are made from this list.

/// One thing that is checked.
#[derive(Debug, PartialEq, Eq)]
pub struct Code {
    pub code: &'static str,
    pub title: &'static str,
    /// What is checked, and what it means if it fails.
    pub meaning: &'static str,
    pub remedy: &'static str,
}

pub const API_SERVER: Code = Code {
    code: "KW-D001",
    title: "the API server answers",
    meaning: "The command asks the API server of the kubeconfig, or of the pod, for its version. Without an answer nothing \
              is watched, and the other checks of the cluster are left out.",
    remedy: "Check the address and the credentials: `kubectl version` with the same kubeconfig and context must work.",
};

pub const API_VERSION: Code = Code {
    code: "KW-D002",
    title: "the API server is new enough",
    meaning: "Missed versions are read back by lists of an exact version, which Kubernetes has had since 1.19. An older \
              server leaves a gap after each outage.",
    remedy: "Upgrade the cluster. On an older one Kubewitness watches, and gaps tell what is missing.",
};

pub const RIGHTS: Code = Code {
    code: "KW-D003",
    title: "the rights for a source",
    meaning: "A source needs the rights to get, list and watch its resource, in all namespaces or in the one that it names. \
              The API server is asked for each right. Without them the source is held up and witnesses nothing.",
    remedy: "Add the resource to the rules of the ClusterRole `kubewitness-witness`, as `deploy/kustomize/rbac.yaml` has it \
             for jobs. With --account you check the rights of the controller's account rather than your own.",
};

pub const CONTROLLER: Code = Code {
    code: "KW-D004",
    title: "the controller answers",
    meaning: "The command asks the controller for its status, as `kubewitness status` does.",
    remedy: "See why it does not run: `kubectl -n kubewitness get pods` and the log of the pod. If it does not know you, \
             give a token; `kubewitness status` says how.",
};

pub const WATCH: Code = Code {
    code: "KW-D005",
    title: "a source sees what happens",
    meaning: "A source is up to date, and nothing holds it up. While it lists or reads missed versions back, what is shown may \
              be old. Where events get lost, an audit has found differences.",
    remedy: "`kubewitness status` says what holds the source up. A refused right is told with its name, and a journal that \
             can't be written with its reason.",
};

pub const FOLDER: Code = Code {
    code: "KW-D006",
    title: "the data folder can be written",
    meaning: "The command writes a small file into the data folder, waits until it is on the disk, and removes it. Without a \
              folder that can be written, the controller does not start.",
    remedy: "Let the user of the controller own the folder, and mount the volume for writing. In a pod, `fsGroup` decides.",
};

pub const SPACE: Code = Code {
    code: "KW-D007",
    title: "the data folder has free space",
    meaning: "A warning below 1 GiB or a tenth of the volume, and a fault below 128 MiB. On a full volume the controller stops \
              to take in states, and goes on once there is space.",
    remedy: "Enlarge the volume, or let the journal keep less: `retention` in the host's settings. `kubewitness journal \
             stats` tells what it may take.",
};

pub const JOURNAL: Code = Code {
    code: "KW-D008",
    title: "the journal has its bounds",
    meaning: "The size of the journal is told. A warning tells what keeps retention from taking states that are beyond their \
              bounds, such as a plugin that is behind.",
    remedy: "Each line says what to do. `kubewitness journal stats` tells how much may be taken.",
};

pub const CLOCK: Code = Code {
    code: "KW-D009",
    title: "the clocks agree",
    meaning: "The clock of the controller is compared with that of the API server, by the header `Date` of an answer of each. \
              Before installing, the clock of this machine is compared. States have the times of the controller's \
              clock. A warning above 5 seconds, and a fault above a minute.",
    remedy: "Synchronize the clocks of the nodes, with chrony or systemd-timesyncd.",
};

pub const PLUGIN: Code = Code {
    code: "KW-D010",
    title: "a plugin keeps up",
    meaning: "A plugin runs, and its oldest unfinished state is younger than a minute. A plugin that failed gets nothing. States \
              wait for it in the journal, so none is lost. Dead letters are states that it could not take.",
    remedy: "`kubewitness plugins` shows the last error. `kubewitness deadletters list` shows what was parked, and `kubewitness \
             deadletters replay` hands it over again.",
};

pub const CERTIFICATE: Code = Code {
    code: "KW-D011",
    title: "a certificate is good for a while",
    meaning: "The end of the certificates of the portal and of the API server, and of the kubeconfig's own if it has one. A warning 30 days before, and a \
              fault once it has ended.",
    remedy: "Renew the certificate. The portal reads the files of --tls-cert and --tls-key again when they change. A new \
             kubeconfig comes from whoever gave you the old one.",
};

pub const VERSIONS: Code = Code {
    code: "KW-D012",
    title: "this program and the controller have one version",
    meaning: "An older program may not know what a newer controller answers, and the other way round.",
    remedy: "Install the program of the controller's version, or upgrade the controller: docs/how-to/upgrade.md.",
};

pub const CONFIGURATION: Code = Code {
    code: "KW-D013",
    title: "the configuration is in force",
    meaning: "The controller takes all of its configuration. A part that is refused leaves the last good one in force. Before \
              installing, the settings of --config are read.",
    remedy: "`kubewitness status` names the faults. `kubewitness check DIR` names them before you apply a folder.",
};

pub const OWN_RIGHTS: Code = Code {
    code: "KW-D014",
    title: "the rights of the controller itself",
    meaning: "The controller reads its configuration from ConfigMaps, writes their status and events, asks who people are \
              and what they may see, and holds a Lease where several replicas run. With --account the API server is asked \
              for each of these rights. A warning tells what does not work without the right.",
    remedy: "Apply the roles and bindings of `deploy/kustomize/rbac.yaml`. The Lease is for several replicas alone: \
             `deploy/examples/several-replicas` has its rule.",
};

/// In the order of their numbers.
pub const ALL: [&Code; 14] = [
    &API_SERVER,
    &API_VERSION,
    &RIGHTS,
    &CONTROLLER,
    &WATCH,
    &FOLDER,
    &SPACE,
    &JOURNAL,
    &CLOCK,
    &PLUGIN,
    &CERTIFICATE,
    &VERSIONS,
    &CONFIGURATION,
    &OWN_RIGHTS,
];

#[cfg(test)]
mod tests {
    use super::ALL;

    #[test]
    fn codes_are_numbered_without_a_hole() {
        for (place, code) in ALL.iter().enumerate() {
            assert_eq!(code.code, format!("KW-D{:03}", place + 1), "{}", code.title);
        }
    }
}
