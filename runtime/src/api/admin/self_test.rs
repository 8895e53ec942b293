//! The self-test of a running cluster: canaries through its own placement, against dense attention on one host. While one that
//! has to pass has not, and after one that found something wrong, the cluster takes no work. What a canary must answer is
//! judged in `verdict.rs`.

mod canary;
mod checks;
mod verdict;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use asterism_actors::{
    JobError,
    api::{HostStatus, JobEvent, JobRequest, JobStatus, SelfTestCheck, SelfTestReport, SelfTestState},
    metric,
    supervisor::{AdmissionClosed, ModelFront, Supervisor},
};
use asterism_kernels::KvFormat;
use tokio::runtime::Handle;

use crate::{
    api::admin::running::RunningFile,
    cluster::{Model, file::DType},
};
use canary::Canary;
use checks::Check;
use verdict::{CanaryRun, CheckOutcome, CheckRules, judge};

/// How often hosts are looked at that are not there yet.
const TEST_LOOK_EVERY: Duration = Duration::from_millis(200);
/// How long until what could not be done is tried again.
const AGAIN_AFTER: Duration = Duration::from_secs(5);
/// Longest wait for one canary, in seconds.
const CANARY_S: f64 = 120.0;
/// Longest self-test; canaries that have not begun by then are left out.
const LIMIT: Duration = Duration::from_secs(600);
/// Label of its jobs.
const LABEL: &str = "self-test";

/// Runs self-tests, one at a time; clones are the same one.
#[derive(Clone)]
pub struct SelfTest {
    supervisor: Supervisor,
    runtime: Handle,
    file: RunningFile,
    report: Arc<Mutex<SelfTestReport>>,
}

/// A model whose canaries are ready to be asked.
struct TestedModel {
    rules: CheckRules,
    checks: Vec<Check>,
}

impl SelfTest {
    /// Of a cluster with this supervisor, and the models and method that its file then has. Runs nothing yet; runs on the present
    /// runtime.
    pub fn new(file: &RunningFile, supervisor: &Supervisor) -> Self {
        Self { supervisor: supervisor.clone(), runtime: Handle::current(), file: file.clone(), report: Arc::default() }
    }

    /// How the latest one stands.
    pub fn report(&self) -> SelfTestReport {
        self.locked().clone()
    }

    /// Begins one, unless one runs. Says how it stands.
    pub fn start(&self) -> SelfTestReport {
        let begun = self.begin();
        if begun {
            let test = self.clone();
            self.runtime.spawn(async move { test.run().await });
        }
        self.report()
    }

    /// Where one has to pass: takes no work until one has, and runs one as soon as every host is ready.
    pub fn keep_untested_closed(&self) {
        let has_to_pass = self.file.cluster().self_test;
        record_closed(has_to_pass);
        if !has_to_pass {
            return;
        }
        self.supervisor.admission_gate().set(Some(AdmissionClosed::Untested));
        self.supervisor.hold_back(true);
        self.locked().state = SelfTestState::Pending;
        let test = self.clone();
        self.runtime.spawn(async move { test.run_until_judged().await });
    }

    async fn run_until_judged(self) {
        while self.supervisor.admission_gate().closed() == Some(AdmissionClosed::Untested)
            && !self.supervisor.has_ended()
        {
            let ready = self.supervisor.cluster().await.is_ok_and(|cluster| cluster.ready);
            if !ready || !self.begin() {
                tokio::time::sleep(TEST_LOOK_EVERY).await;
                continue;
            }
            self.run().await;
            if self.report().state == SelfTestState::Undone {
                tokio::time::sleep(AGAIN_AFTER).await;
            }
        }
    }

    fn locked(&self) -> MutexGuard<'_, SelfTestReport> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nobody else runs one.
    fn begin(&self) -> bool {
        let mut report = self.locked();
        if report.state == SelfTestState::Running {
            return false;
        }
        *report = SelfTestReport { state: SelfTestState::Running, ..SelfTestReport::default() };
        true
    }

    async fn run(&self) {
        let began = Instant::now();
        let (checks, missing) = match self.try_all(began).await {
            Ok(tried) => tried,
            Err(cause) => (Vec::new(), Some(cause)),
        };
        let (state, cause, checks) = verdict::sum_up(checks);
        let (state, cause) = match missing {
            // What is wrong with one model goes before what cannot be tried of another.
            Some(missing) if state != SelfTestState::Wrong => (SelfTestState::Undone, Some(missing)),
            _ => (state, cause),
        };
        self.settle(state, cause.as_deref());
        let mut report = self.locked();
        (report.state, report.cause, report.checks) = (state, cause, checks);
        (report.doing, report.seconds) = (None, began.elapsed().as_secs_f64());
        report.ended_at = SystemTime::now().duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs());
    }

    /// What a result means for new work.
    fn settle(&self, state: SelfTestState, cause: Option<&str>) {
        let (admission_gate, cause) = (self.supervisor.admission_gate(), cause.unwrap_or_default());
        match state {
            SelfTestState::Passed => {
                admission_gate.set(None);
                self.supervisor.hold_back(false);
                tracing::info!("the self-test passed");
            }
            SelfTestState::Wrong => {
                admission_gate.set(Some(AdmissionClosed::Wrong(cause.to_owned())));
                tracing::error!(cause, "the self-test found wrong answers: the cluster takes no work until one passes");
            }
            _ => tracing::warn!(cause, "the self-test could not be done"),
        }
        let result = format!("{state:?}").to_lowercase();
        metrics::counter!(metric::SELF_TESTS, "result" => result).increment(1);
        record_closed(admission_gate.closed().is_some());
    }

    /// What became of the canaries of every model, and what keeps a model from being tried.
    async fn try_all(&self, began: Instant) -> Result<(Vec<SelfTestCheck>, Option<String>), String> {
        let hosts = self.supervisor.cluster().await.map_err(|error| error.to_string())?.hosts;
        let (mut tested, mut missing) = (Vec::new(), None);
        for model in self.supervisor.models() {
            match self.prepared(&model, &hosts).await {
                Ok(ready) => tested.push(ready),
                Err(cause) => drop(missing.get_or_insert(cause)),
            }
        }
        self.locked().total = tested.iter().map(|model| model.checks.len()).sum();
        let mut judged = Vec::new();
        for TestedModel { rules, checks } in tested {
            let mut runs = Vec::new();
            for check in checks {
                self.locked().doing = Some(check.name.clone());
                let started = Instant::now();
                let outcome = match began.elapsed() < LIMIT {
                    true => self.ask(&check).await,
                    false => CheckOutcome::Undone(format!("the self-test had taken {} s already", LIMIT.as_secs())),
                };
                self.locked().done += 1;
                runs.push(CanaryRun { outcome, seconds: started.elapsed().as_secs_f64(), check });
            }
            judged.extend(judge(&runs, rules));
        }
        Ok((judged, missing))
    }

    /// The canaries of a model for the hosts that it has now, which say its name where there are several.
    async fn prepared(&self, model: &Arc<ModelFront>, hosts: &[HostStatus]) -> Result<TestedModel, String> {
        let cluster = self.file.cluster();
        let is_only = self.supervisor.models().len() == 1;
        let of_model = |text: String| if is_only { text } else { format!("{}: {text}", model.name) };
        let nonce = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        let own: Vec<_> = hosts.iter().filter(|host| host.model == model.label).cloned().collect();
        let front = model.clone();
        let canaries = tokio::task::spawn_blocking(move || Canary::pair(&front, nonce));
        let canaries = canaries.await.map_err(|panic| panic.to_string())?;
        let canaries = canaries.map_err(|error| of_model(error.to_string()))?;
        let checks = checks::all(&own, &cluster.method, canaries).map_err(of_model)?.into_iter().map(|check| {
            let request = JobRequest { model: Some(model.name.clone()), ..check.request };
            Check { name: of_model(check.name), request, ..check }
        });
        let rules = cluster.models().find(|of| of.label() == model.label).map_or(CheckRules::default(), rules_of);
        Ok(TestedModel { rules, checks: checks.collect() })
    }

    async fn ask(&self, check: &Check) -> CheckOutcome {
        let mut request = JobRequest { timeout_s: Some(CANARY_S), ..check.request.clone() };
        request.labels.insert(LABEL.into(), check.kind.label().into());
        match self.answer(request).await {
            Ok(status) => verdict::outcome(&status),
            Err(error) => CheckOutcome::Undone(error.to_string()),
        }
    }

    async fn answer(&self, request: JobRequest) -> Result<JobStatus, JobError> {
        let id = self.supervisor.submit_canary(request).await?;
        let mut listener = self.supervisor.watch(&id).await?;
        while let Some(event) = listener.next().await {
            if let JobEvent::Finished { status } = event {
                return Ok(*status);
            }
        }
        Err(JobError::Stopping)
    }
}

fn rules_of(model: &Model) -> CheckRules {
    let rounds = model.dtype != DType::F32 || model.kept != KvFormat::Computed;
    CheckRules { finds: model.path.is_none() && model.random.is_none(), rounds }
}

fn record_closed(closed: bool) {
    metrics::gauge!(metric::SELF_TEST_CLOSED).set(f64::from(u8::from(closed)));
    for result in ["passed", "wrong", "undone"] {
        metrics::counter!(metric::SELF_TESTS, "result" => result).increment(0);
    }
}
