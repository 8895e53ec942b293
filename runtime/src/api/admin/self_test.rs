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
    api::{JobEvent, JobRequest, JobStatus, SelfTestReport, SelfTestState},
    metric,
    supervisor::{AdmissionClosed, Supervisor},
};
use asterism_plan::MethodConfig;
use tokio::runtime::Handle;

use crate::cluster::{Cluster, file::DType};
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
    has_to_pass: bool,
    method: MethodConfig,
    rules: CheckRules,
    report: Arc<Mutex<SelfTestReport>>,
}

impl SelfTest {
    /// Of a cluster with this supervisor. Runs nothing yet; runs on the present runtime.
    pub fn new(cluster: &Cluster, supervisor: &Supervisor) -> Self {
        let embedded = cluster.model.path.is_none() && cluster.model.random.is_none();
        Self {
            supervisor: supervisor.clone(),
            runtime: Handle::current(),
            has_to_pass: cluster.self_test,
            method: cluster.method.clone(),
            rules: CheckRules { finds: embedded, rounds: cluster.model.dtype != DType::F32 },
            report: Arc::default(),
        }
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
        record_closed(self.has_to_pass);
        if !self.has_to_pass {
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
        let tried = self.try_all(began).await;
        let (state, cause, checks) = match tried {
            Ok(runs) => verdict::sum_up(judge(&runs, self.rules)),
            Err(cause) => (SelfTestState::Undone, Some(cause), Vec::new()),
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

    async fn try_all(&self, began: Instant) -> Result<Vec<CanaryRun>, String> {
        let cluster = self.supervisor.cluster().await.map_err(|error| error.to_string())?;
        let nonce = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        let model = self.supervisor.model();
        let hosts: Vec<_> = cluster.hosts.into_iter().filter(|host| host.model == model.label).collect();
        let canaries = tokio::task::spawn_blocking(move || Canary::pair(&model, nonce));
        let canaries = canaries.await.map_err(|panic| panic.to_string())?.map_err(|error| error.to_string())?;
        let checks = checks::all(&hosts, &self.method, canaries)?;
        self.locked().total = checks.len();
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
        Ok(runs)
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

fn record_closed(closed: bool) {
    metrics::gauge!(metric::SELF_TEST_CLOSED).set(f64::from(u8::from(closed)));
    for result in ["passed", "wrong", "undone"] {
        metrics::counter!(metric::SELF_TESTS, "result" => result).increment(0);
    }
}
