//! The words of followers, and acts of people at one replica that hold at all of them.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_stands_by_says_so_and_who_does_not_belong_is_told_what_to_do() {
    let Some(server) = shared_server(SqlService::Postgres, "replicas::stands_by") else { return };
    in_scratch("replicas-told", async |scratch| {
        let world = ReplicaWorld::new(scratch, server).await?;
        let mut runs = [world.start("run-a")?, world.start("run-b")?];
        let leads = dispatcher(&mut runs).await?;
        create_job(&world.simulator, "one").await?;
        let delivered = |status: &StatusView| {
            !status.plugins.is_empty() && status.plugins.iter().all(|plugin| plugin.delivered == 1)
        };
        let status = runs[leads].status_when(WITHIN, "it to be delivered", delivered).await?;
        let name = replica(&status)?.name.clone();
        // The figures of who stands by are those that the other has saved. It may still list, and be one that the
        // journal does not know yet.
        let knows = |status: &StatusView| {
            let both = status.replica.as_ref().is_some_and(|replica| replica.replicas.len() == 2);
            let listed = status.sources.len() == SOURCES.len() && status.sources.iter().all(|it| it.synced);
            both && listed && delivered(status)
        };
        let standby = runs[1 - leads].status_when(WITHIN, "the other to know of it", knows).await?;
        ensure!(standby.plugins.iter().all(|plugin| plugin.state == "standby"), "{:?}", standby.plugins);
        let ReplicaView { dispatches, dispatcher, replicas, .. } = replica(&standby)?;
        ensure!(!dispatches && dispatcher.as_deref() == Some(&name) && replicas.len() == 2, "{standby:?}");
        let (ready, why) = runs[1 - leads].get("/readyz").await?;
        ensure!(ready == 200, "{ready} {why}");

        let address = format!("http://{}", runs[1 - leads].address());
        let (code, told, _) = command(&["status", "--server", &address]).await?;
        let line = format!("{name} (leader)");
        ensure!(code == Some(0) && told.contains(&line) && told.contains(LEASE), "{told}");
        let (_, metrics) = runs[1 - leads].get("/metrics").await?;
        ensure!(
            metrics.contains("kubewitness_replica_dispatches{") && metrics.contains("kubewitness_replicas 2")
        );

        let alone = ["--journal-file", &world.options.args[1]].map(String::from).to_vec();
        let alone = RunOptions { args: alone, data: scratch.folder("alone")?, ..world.options.clone() };
        refused(scratch, "alone", &alone, "--lease").await?;
        let elsewhere = RunOptions { data: scratch.folder("elsewhere")?, ..world.options.clone() };
        let args = vec!["--lease".into(), "default/another".into()];
        let elsewhere = RunOptions { args: [&elsewhere.args[..2], &args].concat(), ..elsewhere };
        refused(scratch, "elsewhere", &elsewhere, "another Lease").await?;
        // A pod that was made anew knows nothing of what its source has witnessed; the journal does.
        let config = world.options.config.as_ref().context("a folder")?;
        let other = scratch.folder("other-config")?;
        for file in std::fs::read_dir(config)? {
            let file = file?;
            let text = std::fs::read_to_string(file.path())?.replace("kind: Job}", "kind: CronJob}");
            write(&other, &file.file_name().to_string_lossy(), &text)?;
        }
        let data = scratch.folder("rescoped")?;
        let rescoped = RunOptions { config: Some(other), data, ..world.options.clone() };
        let mut rescoped = Kubewitness::start("rescoped", &rescoped, scratch.path())?;
        let told =
            |status: &StatusView| status.problems.iter().any(|problem| problem.contains("another kind"));
        rescoped.status_when(WITHIN, "the other source to be refused", told).await?;
        rescoped.stop().await?;

        let embedded = RunOptions { args, data: scratch.folder("embedded")?, ..world.options.clone() };
        refused(scratch, "embedded", &embedded, "can't share an embedded journal").await?;
        for run in &mut runs {
            run.stop().await?;
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_is_told_by_the_others_and_holds_for_the_next_that_dispatches() {
    let Some(server) = shared_server(SqlService::Postgres, "replicas::paused") else { return };
    in_scratch("replicas-paused", async |scratch| {
        let world = ReplicaWorld::new(scratch, server).await?;
        let mut runs = [world.start("run-a")?, world.start("run-b")?];
        let leads = dispatcher(&mut runs).await?;
        create_job(&world.simulator, "one").await?;
        let all = |plugin: &PluginView| plugin.delivered == 1;
        // A status without plugins is one of before.
        runs[leads]
            .status_when(WITHIN, "it to be delivered", |status| status.plugins.iter().any(all))
            .await?;
        let order = async |run: &Kubewitness, verb: &str| {
            let server = format!("http://{}", run.address());
            let line = [verb, "persistence", "--reason", "a move", "--who", "ada", "--server", &server];
            command(&line).await
        };
        let stands_by = |status: &StatusView| status.plugins.iter().any(|plugin| plugin.state == "standby");
        runs[1 - leads].status_when(WITHIN, "the other to know of it", stands_by).await?;
        // Who stands by has nothing to pause, and says so.
        let (code, _, stderr) = order(&runs[1 - leads], "pause").await?;
        ensure!(code != Some(0) && stderr.contains("another replica runs"), "{code:?} {stderr}");
        let (code, _, stderr) = order(&runs[leads], "pause").await?;
        ensure!(code == Some(0), "{code:?} {stderr}");
        let is_paused = |status: &StatusView| {
            status.plugins.iter().any(|p| p.paused.as_ref().is_some_and(|paused| paused.who == "ada"))
        };
        runs[1 - leads].status_when(WITHIN, "the other to tell of the pause", is_paused).await?;
        runs[leads].kill().await?;
        create_job(&world.simulator, "two").await?;
        let next = &mut runs[1 - leads];
        let held = |waiting: u64| {
            move |status: &StatusView| {
                let figures = (1 + waiting, 1, waiting);
                let is_it = |p: &PluginView| (p.observed, p.delivered, p.waiting) == figures;
                status.plugins.iter().any(|plugin| plugin.state == "paused" && is_it(plugin))
            }
        };
        next.status_when(WITHIN, "the next one to hold it paused", held(1)).await?;
        // What comes later would be handed over behind the one that waits.
        create_job(&world.simulator, "three").await?;
        next.status_when(WITHIN, "a later job to wait, too", held(2)).await?;
        ensure!(world.platform.rows().await == 1, "{} rows", world.platform.rows().await);
        let (code, _, stderr) = order(next, "resume").await?;
        ensure!(code == Some(0), "{code:?} {stderr}");
        let all = |plugin: &PluginView| plugin.delivered == 3 && plugin.state == "active";
        next.status_when(WITHIN, "it to go on", |status| status.plugins.iter().all(all)).await?;
        ensure!(world.platform.rows().await == 3, "{} rows", world.platform.rows().await);
        next.stop().await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_leader_goes_on_with_the_last_good_settings_while_the_new_ones_have_a_fault() {
    let Some(server) = shared_server(SqlService::Postgres, "replicas::last_good") else { return };
    in_scratch("replicas-last-good", async |scratch| {
        let mut world = ReplicaWorld::new(scratch, server).await?;
        // The one test that waits for a Lease as long as production does.
        world.options.has_real_timers = true;
        let mut runs = [world.start("run-a")?, world.start("run-b")?];
        let leads = dispatcher(&mut runs).await?;
        let stand_by = |status: &StatusView| {
            !status.plugins.is_empty() && status.plugins.iter().all(|plugin| plugin.state == "standby")
        };
        let follows = 1 - leads;
        runs[follows].status_when(WITHIN, "plugins that stand by", stand_by).await?;
        let config = world.options.config.clone().context("the configuration")?;
        let host = std::fs::read_to_string(config.join("host.yaml"))?;
        write(&config, "host.yaml", &(host + "    - {typo: 1}\n"))?;
        for run in &mut runs {
            run.status_when(WITHIN, "the fault", |status| !status.problems.is_empty()).await?;
        }
        runs[leads].kill().await?;
        let killed = Instant::now();
        dispatcher(&mut runs[follows..=follows]).await?;
        // It was renewed every two seconds, and lasts 15.
        ensure!(killed.elapsed() > Duration::from_secs(10), "the Lease lasted {:?}", killed.elapsed());
        create_job(&world.simulator, "one").await?;
        let delivered = |status: &StatusView| status.plugins.iter().all(|plugin| plugin.delivered == 1);
        runs[follows].status_when(WITHIN, "the job to be delivered", delivered).await?;
        runs[follows].stop().await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_replica_that_dispatches_ticks_and_the_next_goes_on() {
    let Some(server) = shared_server(SqlService::Postgres, "replicas::ticks") else { return };
    in_scratch("replicas-ticks", async |scratch| {
        let world = ReplicaWorld::new(scratch, server).await?;
        let config = world.options.config.clone().context("the configuration")?;
        let host = std::fs::read_to_string(config.join("host.yaml"))?;
        write(&config, "host.yaml", &(host + FOR_PROBE))?;
        let probe = manifest("{command: done, tick: [ledger.append notes ticked]}", "tick: {every: 1s}\n");
        write(&config, "probe.yaml", &probe.replace("second", "platform"))?;
        let mut runs = [world.start("run-a")?, world.start("run-b")?];
        let leads = dispatcher(&mut runs).await?;
        // Each has a ledger of its own, in its data folder.
        let notes = |index: usize| {
            let name = ["run-a", "run-b"][index];
            let text = std::fs::read_to_string(scratch.path().join(name).join("audit/notes.jsonl"));
            text.map_or(0, |text| text.lines().count())
        };
        let ticks = async |run: &mut Kubewitness| {
            let several = |it: &PluginView| it.tick.as_ref().is_some_and(|tick| tick.ticks >= 3);
            run.status_when(WITHIN, "ticks", |status| status.plugins.iter().any(several)).await
        };
        ticks(&mut runs[leads]).await?;
        ensure!((notes(leads) >= 3, notes(1 - leads)) == (true, 0), "{} {}", notes(leads), notes(1 - leads));
        let other = runs[1 - leads].status().await?;
        ensure!(other.plugins.iter().all(|plugin| plugin.tick.is_none()), "{other:?}");
        runs[leads].kill().await?;
        ticks(&mut runs[1 - leads]).await?;
        ensure!(notes(1 - leads) >= 3);
        runs[1 - leads].stop().await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_logs_out_at_one_is_logged_out_at_all_also_at_one_that_comes_later() {
    let Some(server) = shared_server(SqlService::Postgres, "replicas::log_out") else { return };
    in_scratch("replicas-log-out", async |scratch| {
        let mut world = ReplicaWorld::new(scratch, server).await?;
        let key = scratch.path().join("session-key");
        std::fs::write(&key, "5c".repeat(32))?;
        let key = key.to_string_lossy().into_owned();
        world.options.args.extend(["--auth", "kubernetes", "--session-key-file", &key].map(String::from));
        let (one, mut other) = (world.start("run-a")?, world.start("run-b")?);
        let url = |run: &Kubewitness| format!("http://{}", run.address());
        let status = async |run: &Kubewitness, cookie: &str| {
            let asked = http().get(format!("{}/api/v1/status", url(run))).header(COOKIE, cookie).send();
            anyhow::Ok(asked.await.map_or(0, |answer| answer.status().as_u16()))
        };
        let sign_in = async || {
            let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build()?;
            let form = client.post(format!("{}/login", url(&one))).header("origin", url(&one));
            let form = form.header(CONTENT_TYPE, "application/x-www-form-urlencoded");
            let answer = form.body(format!("token={}", world.simulator.token())).send().await?;
            let set = answer.headers().get(SET_COOKIE).context("a cookie")?.to_str()?;
            anyhow::Ok(set.split(';').next().unwrap_or_default().to_owned())
        };
        let becomes = async |run: &Kubewitness, cookie: &str, code: u16| {
            let what = format!("{code} of {}", url(run));
            until(WITHIN, &what, async || Ok((status(run, cookie).await? == code).then_some(()))).await
        };
        becomes(&one, "", 401).await?;
        let (leaves, stays) = (sign_in().await?, sign_in().await?);
        for (run, cookie) in [(&one, &leaves), (&other, &leaves), (&other, &stays)] {
            becomes(run, cookie, 200).await?;
        }
        let out = http().post(format!("{}/logout", url(&one))).header(COOKIE, &leaves);
        ensure!(out.header("origin", url(&one)).send().await?.status().as_u16() < 400);
        becomes(&other, &leaves, 401).await?;
        other.kill().await?;
        let mut late = world.start("run-c")?;
        becomes(&late, &stays, 200).await?;
        becomes(&late, &leaves, 401).await?;
        late.stop().await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_muted_at_one_is_muted_at_all_and_undone_at_any() {
    let Some(server) = shared_server(SqlService::Postgres, "replicas::muted") else { return };
    in_scratch("replicas-muted", async |scratch| {
        let world = ReplicaWorld::new(scratch, server).await?;
        let mut runs = [world.start("run-a")?, world.start("run-b")?];
        let leads = dispatcher(&mut runs).await?;
        let url = |run: &Kubewitness| format!("http://{}", run.address());
        let says = async |run: &Kubewitness, line: &[&str]| {
            let (code, stdout, stderr) = command(&[line, &["--server", &url(run)]].concat()).await?;
            ensure!(code == Some(0), "{line:?} ended with {code:?}: {stdout}{stderr}");
            anyhow::Ok(stdout)
        };
        runs[1 - leads].answers().await?;
        says(&runs[1 - leads], &["mute", "-n", "sandbox", "--who", "ada"]).await?;
        says(&runs[leads], &["mute", "--all", "--to", "ops"]).await?;
        let list = says(&runs[leads], &["mute", "--list"]).await?;
        ensure!(list.contains("the namespace sandbox") && list.contains("everything"), "{list}");
        for run in &mut runs {
            run.kill().await?;
        }
        let mut late = world.start("run-c")?;
        late.answers().await?;
        let said = says(&late, &["unmute", "-n", "sandbox"]).await?;
        ensure!(said.contains("is unmuted"), "{said}");
        let list = says(&late, &["mute", "--list"]).await?;
        ensure!(!list.contains("sandbox") && list.contains("everything"), "{list}");
        late.stop().await
    })
    .await;
}

async fn refused(scratch: &Scratch, name: &str, options: &RunOptions, why: &str) -> Result<()> {
    let mut run = Kubewitness::start(name, options, scratch.path())?;
    let ended = run.process().wait(WITHIN).await?;
    let said = run.process().stderr();
    ensure!(ended == ProcessEnd::Code(1) && said.contains(why), "{name}: {ended:?}, {said}");
    Ok(())
}
