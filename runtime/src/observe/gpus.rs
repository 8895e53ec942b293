//! What NVIDIA's management library (NVML: `libnvidia-ml.so.1`, which comes with the driver) tells of the GPUs of this machine: use, memory,
//! temperature, clocks, ECC errors and Xid events. It is loaded when a node begins; where there is none, nothing is read. Computes on no
//! GPU, and changes none.

use std::{
    ffi::OsStr,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use asterism_actors::{
    api::{GpuReading, MOST_GPUS},
    messages::HostMessage,
};
use nvml_wrapper::{
    Nvml,
    bitmasks::event::EventTypes,
    device::Device,
    enum_wrappers::device::{Clock, EccCounter, MemoryError, TemperatureSensor},
    enums::event::XidError,
    error::NvmlError,
    event::EventSet,
};

/// Time between two readings.
const READ_EVERY: Duration = Duration::from_secs(2);
/// Most Xid events of a GPU that are taken with one reading; others are taken with the next.
const XIDS_AT_ONCE: usize = 64;
/// What NVML calls an Xid that it cannot tell.
const UNKNOWN_XID: u64 = 999;

/// Reads the GPUs of a machine. May wait for their driver.
pub trait GpuReader: Send {
    /// All of them, as they are now.
    fn read(&mut self) -> Vec<GpuReading>;
}

/// The latest reading of this machine's GPUs, for the agent of each of its nodes. Clones are of one.
#[derive(Clone, Default)]
pub struct GpuWatch {
    latest: Arc<Mutex<(u64, Vec<GpuReading>)>>,
    /// The last reading that this clone has said.
    said: u64,
}

impl GpuWatch {
    /// That of this process, which reads from its first call on.
    pub fn of_machine() -> Self {
        static WATCH: OnceLock<GpuWatch> = OnceLock::new();
        let begin = || match Library::load(None) {
            Ok(library) => GpuWatch::reading(library),
            Err(cause) => {
                tracing::info!(%cause, "no metrics of GPUs");
                GpuWatch::default()
            }
        };
        WATCH.get_or_init(begin).clone()
    }

    /// One that `reader` is read for, on a thread of its own until all clones are gone: a driver that hangs holds up nobody.
    fn reading(mut reader: impl GpuReader + 'static) -> Self {
        let watch = Self::default();
        let latest = Arc::downgrade(&watch.latest);
        let read = move || {
            while let Some(latest) = latest.upgrade() {
                let read = reader.read();
                let mut latest = latest.lock().unwrap_or_else(PoisonError::into_inner);
                *latest = (latest.0 + 1, read);
                drop(latest);
                thread::sleep(READ_EVERY);
            }
        };
        if let Err(error) = thread::Builder::new().name("gpus".into()).spawn(read) {
            tracing::warn!(%error, "no metrics of GPUs: no thread can be started for them");
        }
        watch
    }

    fn locked(&self) -> MutexGuard<'_, (u64, Vec<GpuReading>)> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What an agent is to say of them, unless this clone has said it.
    pub fn news(&mut self) -> Option<HostMessage> {
        let (number, gpus) = self.locked().clone();
        let is_new = number > self.said && !gpus.is_empty();
        self.said = number;
        is_new.then(|| HostMessage::Gpus { gpus: GpuReading::as_json(&gpus) })
    }
}

/// The GPUs that NVML knows, and what has happened to them since it was loaded.
struct Library(Vec<WatchedGpu>);

/// A GPU and its Xid events.
struct WatchedGpu {
    device: Device<'static>,
    /// None where the driver tells of none.
    events: Option<EventSet<'static>>,
    /// How many Xid events there were, and the latest: its number, and when it came in seconds since 1970.
    xids: (u64, Option<(u64, u64)>),
}

impl Library {
    /// Loads it from a path, or where the system has it.
    ///
    /// # Errors
    /// Why there is none, or it tells of no GPU.
    fn load(path: Option<&OsStr>) -> Result<Self, String> {
        let mut builder = Nvml::builder();
        if let Some(path) = path {
            builder.lib_path(path);
        }
        let nvml = builder.init().map_err(|error| match error {
            NvmlError::LibloadingError(_) => "NVIDIA's libnvidia-ml.so.1 is not here".to_owned(),
            other => format!("NVIDIA's libnvidia-ml.so.1 does not begin: {other}"),
        })?;
        // Its events borrow it for as long as the process reads them.
        let nvml: &'static Nvml = Box::leak(Box::new(nvml));
        let count =
            nvml.device_count().map_err(|error| format!("NVIDIA's libnvidia-ml.so.1 counts no GPU: {error}"))?;
        let gpu = |index: u32| {
            let device = nvml.device_by_index(index).ok()?;
            let events = nvml.create_event_set().ok();
            // A set that a GPU does not take is freed by that.
            let events = events.and_then(|set| device.register_events(EventTypes::CRITICAL_XID_ERROR, set).ok());
            Some(WatchedGpu { device, events, xids: (0, None) })
        };
        let gpus: Vec<_> = (0..count.min(MOST_GPUS as u32)).filter_map(gpu).collect();
        match gpus.is_empty() {
            true => Err("NVIDIA's libnvidia-ml.so.1 knows no GPU here".into()),
            false => Ok(Self(gpus)),
        }
    }
}

impl GpuReader for Library {
    fn read(&mut self) -> Vec<GpuReading> {
        self.0.iter_mut().zip(0..).map(|(gpu, index)| gpu.read(index)).collect()
    }
}

impl WatchedGpu {
    fn read(&mut self, index: u32) -> GpuReading {
        self.take_events();
        let device = &self.device;
        let memory = device.memory_info().ok();
        let ecc = |kind| device.total_ecc_errors(kind, EccCounter::Volatile).ok();
        GpuReading {
            index,
            name: device.name().unwrap_or_default(),
            uuid: device.uuid().unwrap_or_default(),
            busy_percent: device.utilization_rates().ok().map(|rates| rates.gpu.min(100)),
            used_bytes: memory.as_ref().map(|memory| memory.used),
            free_bytes: memory.as_ref().map(|memory| memory.free),
            celsius: device.temperature(TemperatureSensor::Gpu).ok(),
            sm_mhz: device.clock_info(Clock::SM).ok(),
            memory_mhz: device.clock_info(Clock::Memory).ok(),
            corrected_errors: ecc(MemoryError::Corrected),
            uncorrected_errors: ecc(MemoryError::Uncorrected),
            xids: self.xids.0,
            last_xid: self.xids.1.map(|(number, _)| number),
            last_xid_at: self.xids.1.map(|(_, at)| at),
        }
    }

    fn take_events(&mut self) {
        for _ in 0..XIDS_AT_ONCE {
            let Some(Ok(event)) = self.events.as_ref().map(|events| events.wait(0)) else { return };
            if let Some(xid) = event.event_data {
                let number = if let XidError::Value(number) = xid { number } else { UNKNOWN_XID };
                self.xids = (self.xids.0 + 1, Some((number, unix_seconds())));
            }
        }
    }
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use std::{path::PathBuf, process::Command, sync::mpsc};

    use super::*;

    /// A library with two GPUs: the first tells everything and has two Xid events, the second has its name alone.
    const FAKE: &str = include_str!("../../../tests/survival/nvml.c");

    fn library(folder: &std::path::Path) -> PathBuf {
        let (source, library) = (folder.join("fake.c"), folder.join("libnvidia-ml.so.1"));
        std::fs::write(&source, FAKE).unwrap();
        let built = Command::new("cc").args(["-shared", "-fPIC", "-w", "-o"]).arg(&library).arg(&source).status();
        assert!(built.expect("a C compiler, which README.md asks for").success());
        library
    }

    #[test]
    fn a_library_is_loaded_and_each_gpu_tells_what_it_can() {
        let folder = tempfile::tempdir().unwrap();
        let mut loaded = Library::load(Some(library(folder.path()).as_os_str())).unwrap();
        let [first, second] = &loaded.read()[..] else { panic!("two GPUs") };
        let known = GpuReading {
            index: 0,
            name: "NVIDIA Fake".into(),
            uuid: "GPU-1".into(),
            busy_percent: Some(97),
            used_bytes: Some(50),
            free_bytes: Some(30),
            celsius: Some(61),
            sm_mhz: Some(1980),
            memory_mhz: Some(2619),
            corrected_errors: Some(7),
            uncorrected_errors: Some(2),
            xids: 2,
            last_xid: Some(79),
            last_xid_at: first.last_xid_at,
        };
        assert!(first.last_xid_at.is_some());
        assert_eq!(first, &known);
        assert_eq!(second, &GpuReading { index: 1, name: "NVIDIA Fake".into(), ..GpuReading::default() });
        assert_eq!(loaded.read()[0].xids, 2, "each event counts once");
    }

    #[test]
    fn what_is_no_library_is_told_in_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libnvidia-ml.so.1");
        let cause = || Library::load(Some(path.as_os_str())).err().unwrap();
        assert_eq!(cause(), "NVIDIA's libnvidia-ml.so.1 is not here");
        std::fs::write(&path, "no library").unwrap();
        assert_eq!(cause(), "NVIDIA's libnvidia-ml.so.1 is not here");
    }

    /// A reader that waits to be told what to read.
    struct Told(mpsc::Receiver<Vec<GpuReading>>);

    impl GpuReader for Told {
        fn read(&mut self) -> Vec<GpuReading> {
            self.0.recv().unwrap_or_default()
        }
    }

    #[test]
    fn each_reading_is_said_once_by_each_agent_and_a_driver_that_hangs_holds_up_none() {
        let (tell, told) = mpsc::channel();
        let watch = GpuWatch::reading(Told(told));
        let mut agents = [watch.clone(), watch];
        assert_eq!(agents.each_mut().map(GpuWatch::news), [None, None], "nothing was read yet");
        let gpus = vec![GpuReading { busy_percent: Some(3), ..GpuReading::default() }];
        tell.send(gpus.clone()).unwrap();
        for agent in &mut agents {
            let news = std::iter::repeat_with(|| agent.news()).find(Option::is_some).flatten();
            assert_eq!(news, Some(HostMessage::Gpus { gpus: GpuReading::as_json(&gpus) }));
            assert_eq!(agent.news(), None);
        }
    }
}
