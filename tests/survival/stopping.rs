//! Every process of a cluster asked to end, killed, stopped, hung up on and left without memory while it answers: what happens to whom, and that the
//! tokens stay the same. Where a service manager would start a process again, the test does.

use std::{
    fs,
    net::UdpSocket,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tests::{Cluster, ClusterSpec};

use super::{BINARY, Ending, SURVIVING, cgroup, embedded, eventually, ready, signal, start, stops};

/// Longer than a host may be silent, unless `ASTERISM_STOPPED_S` says otherwise.
const STOPPED: Duration = Duration::from_secs(4);
/// What the kernel does to a process for which a control group has no memory.
const STARVED: &str = "-OOM";

/// What processes are struck with: where no group can be made, all but one.
fn blows() -> Vec<&'static str> {
    let mut blows = vec!["-TERM", "-KILL", "-STOP", "-HUP"];
    match cgroup::no_memory_groups() {
        None => blows.push(STARVED),
        Some(why) => tests::skipped(&why),
    }
    blows
}

pub fn job(id: &str) -> Value {
    let context: String = (0..200).map(|town| format!("The road to town {town} is long and slow. ")).collect();
    let sampling = json!({"temperature": 0.0});
    json!({"id": id, "context": context, "query": "What is said of the road?", "max_tokens": 100, "ignore_eos": true,
        "sampling": sampling})
}

pub fn submitted(cluster: &Cluster, id: &str) {
    eventually("the job to be taken", || {
        ureq::post(format!("{}/api/v1/jobs", cluster.server())).send_json(job(id)).is_ok()
    });
}

pub fn shown(cluster: &Cluster, path: &str) -> Option<Value> {
    // There is none while the supervisor is another one.
    let record: Value = serde_json::from_slice(&fs::read(cluster.folder().join("data/supervisor.json")).ok()?).ok()?;
    ureq::get(format!("http://{}{path}", record["admin"].as_str()?)).call().ok()?.into_body().read_json().ok()
}

/// The tokens of a job once it has ended.
pub fn tokens(cluster: &Cluster, id: &str) -> Value {
    let mut status = Value::Null;
    eventually("the job to end", || {
        status = shown(cluster, &format!("/api/v1/jobs/{id}")).unwrap_or_default();
        assert!(status["state"] != "FAILED" && status["state"] != "CANCELLED", "{id}: {status:#}");
        status["state"] == "SUCCEEDED"
    });
    status["tokens"].clone()
}

/// Waits until a job generates.
pub fn generates(cluster: &Cluster, id: &str) {
    eventually("some tokens", || {
        let status = shown(cluster, &format!("/api/v1/jobs/{id}")).unwrap_or_default();
        status["generated_tokens"].as_u64().is_some_and(|tokens| tokens > 2)
    });
}

pub fn host<'a>(status: &'a Value, name: &str) -> &'a Value {
    status["hosts"].as_array().expect("hosts").iter().find(|host| host["name"] == name).expect("a host of that name")
}

fn well(status: &Value) -> bool {
    let open = |host: &Value| host["scheduling"] == "open";
    ready(status) && status["hosts"].as_array().is_some_and(|hosts| hosts.iter().all(open))
}

/// Sends a signal; a process that it stops goes on after a while.
fn strike(blow: &str, pid: u64) {
    if blow == STARVED {
        return cgroup::starve(pid);
    }
    signal(blow, pid);
    if blow == "-STOP" {
        stops(pid);
        let (done, waits) = std::sync::mpsc::channel::<()>();
        let stopped = std::env::var("ASTERISM_STOPPED_S").ok().and_then(|seconds| seconds.parse().ok());
        let _ = waits.recv_timeout(stopped.map_or(STOPPED, Duration::from_secs));
        drop(done);
        // Whoever watches it may have ended it meanwhile.
        let _ = std::process::Command::new("kill").args(["-CONT", &pid.to_string()]).status();
    }
}

/// A UDP port that is free now.
fn port() -> u16 {
    UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port").port()
}

#[test]
fn who_is_asked_to_end_killed_stopped_or_hung_up_on_is_back_by_itself_and_the_tokens_are_the_same() {
    let cluster = Cluster::start(BINARY, &ClusterSpec { method: SURVIVING, ..embedded(2) });
    submitted(&cluster, "undisturbed");
    let expected = tokens(&cluster, "undisturbed");
    for victim in ["context-0", "query-0", "supervisor"] {
        for blow in blows() {
            let id = format!("{victim}{blow}");
            submitted(&cluster, &id);
            generates(&cluster, &id);
            let before = cluster.status();
            let pid = |status: &Value| match victim {
                "supervisor" => cluster.supervisor(),
                name => host(status, name)["pid"].as_u64().expect("a process"),
            };
            let struck = pid(&before);
            strike(blow, struck);
            let began = Instant::now();
            assert_eq!(tokens(&cluster, &id), expected, "{id}");
            let after =
                cluster.wait_for("all to be back", |status| well(status) && (blow == "-HUP" || pid(status) != struck));
            eprintln!("{id}: answered and back after {:.1} s", began.elapsed().as_secs_f64());
            assert_eq!(pid(&after) == struck, blow == "-HUP", "{id}: only SIGHUP ends nobody");
            for name in ["context-0", "context-1", "query-0"] {
                let [was, is] = [&before, &after].map(|status| host(status, name));
                let planned = blow == "-TERM" || name != victim || blow == "-HUP";
                assert_eq!(was["restarts"] == is["restarts"], planned, "{id}: what is asked for is no failure: {is:#}");
                assert_eq!(was["pid"] == is["pid"], name != victim || blow == "-HUP", "{id}: {name} is left alone");
            }
        }
    }
}

#[test]
fn an_up_that_its_service_manager_starts_again_goes_on_with_what_it_had() {
    let cluster = Cluster::start(BINARY, &ClusterSpec { method: SURVIVING, ..embedded(2) });
    submitted(&cluster, "undisturbed");
    let expected = tokens(&cluster, "undisturbed");
    for blow in blows() {
        let id = format!("up{blow}");
        submitted(&cluster, &id);
        generates(&cluster, &id);
        let (parent, supervisor, before) = (cluster.parent(), cluster.supervisor(), cluster.status());
        strike(blow, parent);
        if matches!(blow, "-TERM" | "-KILL" | STARVED) {
            let pids: Vec<u64> = ["context-0", "context-1", "query-0"]
                .map(|name| host(&before, name)["pid"].as_u64().expect("a process"))
                .into();
            eventually("all of it to end", || !pids.iter().chain([&parent, &supervisor]).any(|pid| super::lives(*pid)));
            let up = cluster.run(&["up", "--detach"]);
            assert!(up.status.success(), "{}", String::from_utf8_lossy(&up.stderr));
        }
        let began = Instant::now();
        assert_eq!(tokens(&cluster, &id), expected, "{id}");
        let after = cluster.wait_for("all to be back", well);
        eprintln!("{id}: answered and back after {:.1} s", began.elapsed().as_secs_f64());
        let left_alone = matches!(blow, "-STOP" | "-HUP");
        assert_eq!(host(&before, "query-0")["pid"] == host(&after, "query-0")["pid"], left_alone, "{id}");
    }
}

/// A supervisor and the agents of two nodes, each under a service manager of its own.
fn of_two_nodes() -> (Cluster, String) {
    let listen = format!("127.0.0.1:{}", port());
    let spec = ClusterSpec { method: SURVIVING, listen: listen.clone(), ..embedded(2) };
    let cluster = Cluster::written(BINARY, &spec, |text| {
        let text = text.replace("[[node]]", "[[node]]\nname = \"b\"\naddress = \"127.0.0.1\"\n\n[[node]]");
        text.replace("name = \"context-0\"", "name = \"context-0\"\nnode = \"local\"")
            .replace("name = \"context-1\"", "name = \"context-1\"\nnode = \"b\"")
            .replace("role = \"query\"", "node = \"b\"\nrole = \"query\"")
    });
    (cluster, listen)
}

#[test]
fn a_supervisor_and_an_agent_that_are_asked_to_end_leave_the_others_at_work() {
    let (cluster, listen) = of_two_nodes();
    let serve = || start(&cluster, &["supervisor"]);
    let agent = |name: &str| start(&cluster, &["node", "--join", &listen, "--name", name]);
    let mut supervisor = serve();
    eventually("the supervisor to serve", || cluster.folder().join("data/supervisor.json").exists());
    let (mut local, _b) = (agent("local"), agent("b"));
    cluster.wait_for("all hosts", well);
    submitted(&cluster, "undisturbed");
    let expected = tokens(&cluster, "undisturbed");
    let ended = |process: &mut Ending| {
        eventually("the process to end", || process.0.try_wait().expect("a child").is_some());
        process.0.wait().expect("a child").code()
    };
    for (victim, blow) in
        ["supervisor", "local"].into_iter().flat_map(|who| blows().into_iter().map(move |blow| (who, blow)))
    {
        let id = format!("{victim}{blow}");
        submitted(&cluster, &id);
        generates(&cluster, &id);
        let before = cluster.status();
        let struck = if victim == "supervisor" { &mut supervisor } else { &mut local };
        strike(blow, struck.0.id().into());
        let ends = matches!(blow, "-TERM" | "-KILL" | STARVED);
        if ends {
            assert_eq!(ended(struck), (blow == "-TERM").then_some(143), "{id}");
            *struck = if victim == "supervisor" { serve() } else { agent("local") };
        }
        let began = Instant::now();
        assert_eq!(tokens(&cluster, &id), expected, "{id}");
        let pid = |status: &Value, name: &str| host(status, name)["pid"].as_u64();
        // An agent's host ends a moment after it, and is well until then.
        let replaced = |status: &Value| pid(status, "context-0") != pid(&before, "context-0");
        let loses_its_host = victim == "local" && ends;
        let after = cluster.wait_for("all to be back", |status| well(status) && (!loses_its_host || replaced(status)));
        eprintln!("two nodes, {id}: answered and back after {:.1} s", began.elapsed().as_secs_f64());
        for name in ["context-0", "context-1", "query-0"] {
            let left_alone = name != "context-0" || !loses_its_host;
            assert_eq!(pid(&before, name) == pid(&after, name), left_alone, "{id}: {name}");
        }
    }
    // Drained, a host stays down when it is asked to end, until it is to work again.
    let pid = cluster.pid("context-0");
    let drained = cluster.run(&["host", "drain", "context-0"]);
    assert_eq!(drained.status.code(), Some(0), "{}", String::from_utf8_lossy(&drained.stderr));
    signal("-TERM", pid);
    cluster.wait_for("it to be down", |status| host(status, "context-0")["health"] == "dead");
    let answers = || {
        let page =
            ureq::get(format!("{}/readyz", cluster.server())).call().expect("200: the other context host answers");
        page.into_body().read_to_string().expect("UTF-8")
    };
    let page = answers();
    assert!(page.contains("[-] context-0 dead") && page.ends_with("ready\n"), "{page}");
    let removed = cluster.run(&["host", "remove", "context-0"]);
    assert_eq!(removed.status.code(), Some(0), "{}", String::from_utf8_lossy(&removed.stderr));
    let status = cluster.status();
    assert!(ready(&status) && status["removed"] == json!(["context-0"]), "{status:#}");
    assert_eq!((answers().as_str(), cluster.metrics().contains("host=\"context-0\"")), ("ready\n", false));
    let present = cluster.run(&["host", "remove", "context-1"]);
    assert_eq!(present.status.code(), Some(5), "{}", String::from_utf8_lossy(&present.stderr));
    let opened = cluster.run(&["host", "uncordon", "context-0"]);
    assert_eq!(opened.status.code(), Some(0), "{}", String::from_utf8_lossy(&opened.stderr));
    cluster.wait_for("it to be back", |status| well(status) && host(status, "context-0")["pid"].as_u64() != Some(pid));
    let down = cluster.run(&["down"]);
    assert_eq!(down.status.code(), Some(0), "{}", String::from_utf8_lossy(&down.stderr));
    assert_eq!(ended(&mut supervisor), Some(0), "`down` ends a cluster");
    assert_eq!(ended(&mut local), Some(0));
}

#[test]
fn all_hosts_are_restarted_in_turn_under_jobs_and_sessions_and_nothing_fails() {
    let cluster = Cluster::start(BINARY, &ClusterSpec { method: SURVIVING, ..embedded(3) });
    submitted(&cluster, "undisturbed");
    let expected = tokens(&cluster, "undisturbed");
    for session in 0..3 {
        let context = format!("The special magic number for oak-{session} is {}. ", 1000 + session).repeat(60);
        let body = json!({"name": format!("book-{session}"), "context": context});
        ureq::post(format!("{}/api/v1/sessions", cluster.server())).send_json(body).expect("taken");
    }
    let answer = |session: usize| {
        let query = format!("What is the special magic number for oak-{session}?");
        let name = format!("book-{session}");
        let output = cluster.run(&["session", "ask", &name, &query, "--max-tokens", "8", "-o", "json"]);
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).expect("JSON")["tokens"].clone()
    };
    let answers: Vec<Value> = (0..3).map(answer).collect();
    let before = cluster.status();
    let (over, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                let number = asked.fetch_add(1, Ordering::SeqCst);
                let id = format!("loop-{number}");
                submitted(&cluster, &id);
                assert_eq!(tokens(&cluster, &id), expected, "{id}");
                assert_eq!(answer(number % 3), answers[number % 3], "session {}", number % 3);
            }
        });
        let restarted = cluster.run(&["host", "restart", "--all"]);
        over.store(true, Ordering::SeqCst);
        let printed = String::from_utf8_lossy(&restarted.stderr).into_owned();
        assert_eq!(restarted.status.code(), Some(0), "{printed}");
        assert!(printed.contains("4 hosts were restarted in"), "{printed}");
        eprintln!("{printed}");
    });
    let after = cluster.wait_for("all hosts", well);
    for name in ["context-0", "context-1", "context-2", "query-0"] {
        let [was, is] = [&before, &after].map(|status| host(status, name));
        assert!(was["pid"] != is["pid"] && was["restarts"] == is["restarts"], "{name}: {is:#}");
    }
    assert_eq!((0..3).map(answer).collect::<Vec<_>>(), answers);
    let [transferred, encoded, lost] =
        ["shards_moved_total{how=\"transferred\"", "shards_moved_total{how=\"encoded\"", "shard_reencodes_total"]
            .map(|name| count(&cluster, name));
    assert!(
        transferred > 0 && encoded == 0,
        "what moved went as it lay: {transferred} did, {encoded} were encoded anew"
    );
    eprintln!("{transferred} shards were transferred, {encoded} encoded anew instead, {lost} lost and encoded again");
}

/// The sum of a counter's series.
fn count(cluster: &Cluster, name: &str) -> u64 {
    let (page, name) = (cluster.metrics(), format!("asterism_{name}"));
    let values = page.lines().filter(|line| line.starts_with(&name)).filter_map(|line| line.rsplit(' ').next());
    values.map(|value| value.parse::<u64>().expect("a number")).sum()
}
