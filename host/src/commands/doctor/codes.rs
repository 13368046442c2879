//! The codes of `kubewitness doctor`. They keep their meaning; new ones are added at the end. The pages of
//! `docs/reference/doctor` are made from this list.

/// One thing that is checked.
#[derive(Debug, PartialEq, Eq)]
pub struct DoctorCode {
    pub code: &'static str,
    pub title: &'static str,
    /// The subject of the check, and the meaning of its failure.
    pub meaning: &'static str,
    pub remedy: &'static str,
}

pub const API_SERVER: DoctorCode = DoctorCode {
    code: "KW-D001",
    title: "API server",
    meaning: "The command asks the API server of the kubeconfig, or of the pod, for its version. Without an answer nothing \
              is watched, and the other checks of the cluster are left out.",
    remedy: "Check the address and the credentials: `kubectl version` with the same kubeconfig and context must work.",
};

pub const API_VERSION: DoctorCode = DoctorCode {
    code: "KW-D002",
    title: "version of the API server",
    meaning: "Missed versions are read back by lists of an exact version, which Kubernetes has had since 1.19. An older \
              server leaves a gap after each outage.",
    remedy: "Upgrade the cluster. On an older one Kubewitness watches, and gaps tell what is missing.",
};

pub const RIGHTS: DoctorCode = DoctorCode {
    code: "KW-D003",
    title: "rights for a source",
    meaning: "A source needs the rights to list and watch its resource, in all namespaces or in the one that it \
              names. The command asks the API server for each right. Without them the source witnesses nothing.",
    remedy: "Add the resource to the rules of the ClusterRole `kubewitness-witness`, as `deploy/kustomize/rbac.yaml` has it \
             for jobs. With --account you check the rights of the controller's account rather than your own.",
};

pub const CONTROLLER: DoctorCode = DoctorCode {
    code: "KW-D004",
    title: "controller",
    meaning: "The command asks the controller for its status, as `kubewitness status` does.",
    remedy: "Look at the pods with `kubectl -n kubewitness get pods`, and at the log of the pod. If the controller \
             asks who you are, give a token: `kubewitness status` says how.",
};

pub const WATCH: DoctorCode = DoctorCode {
    code: "KW-D005",
    title: "source",
    meaning: "A source is up to date, and nothing holds it up. While a source lists or reads missed versions back, the \
              shown objects may be old. A warning that events get lost means that an audit has found differences.",
    remedy: "`kubewitness status` says what holds the source up: the right that is missing, or why the journal can't \
             be written.",
};

pub const FOLDER: DoctorCode = DoctorCode {
    code: "KW-D006",
    title: "data folder, write access",
    meaning: "The command writes a small file into the data folder, waits until it is on the disk, and removes it. Without a \
              folder that can be written, the controller does not start.",
    remedy: "Let the user of the controller own the folder, and mount the volume for writing. In a pod, `fsGroup` decides.",
};

pub const SPACE: DoctorCode = DoctorCode {
    code: "KW-D007",
    title: "data folder, free space",
    meaning: "The line is a warning below 1 GiB or a tenth of the volume, and a fault below 128 MiB. On a full volume \
              the controller stops reading from the API server, and goes on once there is space.",
    remedy: "Enlarge the volume, or set `retention` in the host's settings so that the journal keeps less. \
             `kubewitness journal stats` shows how much retention may remove.",
};

pub const JOURNAL: DoctorCode = DoctorCode {
    code: "KW-D008",
    title: "size of the journal",
    meaning: "The line shows the size of the journal. A warning names what keeps retention from removing states that \
              are beyond their bounds, such as a plugin that lags.",
    remedy: "Each line says what to do. `kubewitness journal stats` shows how much may be removed.",
};

pub const CLOCK: DoctorCode = DoctorCode {
    code: "KW-D009",
    title: "clocks",
    meaning: "The command compares the controller's clock with that of the API server, by the header `Date` of their \
              answers. Before installing, it compares the clock of this machine. States have the times of the \
              controller's clock. The line is a warning above 5 seconds, and a fault above a minute.",
    remedy: "Synchronize the clocks of the nodes, with chrony or systemd-timesyncd.",
};

pub const PLUGIN: DoctorCode = DoctorCode {
    code: "KW-D010",
    title: "progress of a plugin",
    meaning: "A plugin runs, and its oldest unfinished state is younger than a minute. A failed plugin gets no states. \
              They wait in the journal, so none is lost. So do those of a paused plugin. Dead letters are states that failed on their last retry.",
    remedy: "`kubewitness plugins` shows the last error. `kubewitness deadletters list` shows the dead letters, and \
             `kubewitness deadletters replay` hands them to the plugin again.",
};

pub const CERTIFICATE: DoctorCode = DoctorCode {
    code: "KW-D011",
    title: "certificate",
    meaning: "The command checks when certificates end: that of the portal, that of the API server, and that of the \
              kubeconfig if it has one. The line is a warning from 30 days before the end, and a fault after the end.",
    remedy: "Renew the certificate. The portal reads the files of --tls-cert and --tls-key again when they change. A new \
             kubeconfig comes from whoever gave you the old one.",
};

pub const VERSIONS: DoctorCode = DoctorCode {
    code: "KW-D012",
    title: "versions of program and controller",
    meaning: "An older program may not understand the answers of a newer controller, and a newer program may not \
              understand an older controller.",
    remedy: "Install the program of the controller's version, or upgrade the controller: docs/how-to/upgrade.md.",
};

pub const CONFIGURATION: DoctorCode = DoctorCode {
    code: "KW-D013",
    title: "configuration",
    meaning: "The controller accepts all of its configuration. If it refuses a part, the last good part stays in \
              force. Before installing, the command checks the settings of --config.",
    remedy: "`kubewitness status` names the faults. To find them before you apply a folder, run `kubewitness check \
             DIR`.",
};

pub const OWN_RIGHTS: DoctorCode = DoctorCode {
    code: "KW-D014",
    title: "rights of the controller",
    meaning: "The controller reads its configuration from ConfigMaps, writes their status and events, asks who people are \
              and what they may see, and holds a Lease where several replicas run. With --account the API server is asked \
              for each of these rights. A warning tells what does not work without the right.",
    remedy: "Apply the roles and bindings of `deploy/kustomize/rbac.yaml`. The Lease is for several replicas alone: \
             `deploy/examples/several-replicas` has its rule.",
};

pub const LEDGERS: DoctorCode = DoctorCode {
    code: "KW-D015",
    title: "shipping of ledgers",
    meaning: "A ledger with `ship` in the host's settings copies each closed file into a bucket. The line is a fault while that \
              fails, and a warning if a file has waited for more than an hour. Files that wait stay on the disk of the \
              controller, and `keep` removes none of them.",
    remedy: "The line says what is wrong: the storage, the access key and its rights, or a name that has other bytes. \
             docs/how-to/ship-ledgers.md has the steps.",
};

pub const SIGNING: DoctorCode = DoctorCode {
    code: "KW-D016",
    title: "signing of ledgers",
    meaning: "The command looks at the settings of --config, or at those in the data folder of --data. The line is a warning \
              for each ledger without `signing` while nothing uses a key of the host. Whoever can write such a ledger can \
              rewrite it with correct hashes.",
    remedy: "Name the key in `signing` of the ledger, or remove it from `keys`. docs/how-to/audit-trail.md has the steps.",
};

pub const DATABASES: DoctorCode = DoctorCode {
    code: "KW-D017",
    title: "rights of a granted database's user",
    meaning: "The command connects to each database on a server that the settings of --config name, or those in the data \
              folder of --data. The line is a warning if the user of the address may do more than plugins need. The line \
              names a superuser, other roles, other schemas or databases, the tables of a journal, and files of the server. \
              The controller judges each statement of a plugin, and a lesser user is the second line of defence.",
    remedy: "Run the statements that the line shows as a user who may make users, with a password of your own. Put the new \
             user into the secret of the address. The controller says the same in its log when it first connects.",
};

pub const STREAMS: DoctorCode = DoctorCode {
    code: "KW-D018",
    title: "key of a stream",
    meaning: "The command looks at the settings of --config, or at those in the data folder of --data, otherwise at what the \
              controller says of its streams. The line is a warning for each stream without `keyFrom` that the controller \
              carries to or reads. Without a key, whoever may publish to the stream can add states that never were, and hide \
              true ones without a gap.",
    remedy: "Give the carrying controller and its readers one key with `keyFrom`. docs/how-to/across-a-stream.md has the \
             order of the steps.",
};

/// In the order of their numbers.
pub const ALL: [&DoctorCode; 18] = [
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
    &LEDGERS,
    &SIGNING,
    &DATABASES,
    &STREAMS,
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
