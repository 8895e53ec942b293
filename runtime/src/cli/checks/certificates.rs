//! Whether the certificates of this machine's processes are accepted now and for a while, and whether the supervisor's clock agrees with
//! the one that says so. Makes no certificate.

use std::{
    fs,
    path::PathBuf,
    time::{Duration, SystemTime},
};

use asterism_transport::certificates::{CA_FILE, CertificateInfo, HOST_FILE, Validity};

use super::Judgment;
use crate::{
    certificates::members,
    cluster::{Cluster, file::SecurityMode},
};

/// Certificates are renewed this long before they end: one with less was not.
const SOON: Duration = Duration::from_secs(30 * 86_400);
const DAY_SECONDS: u64 = 86_400;

pub fn look(cluster: &Cluster) -> Vec<Judgment> {
    let api = cluster.api.as_ref().and_then(|api| api.tls.as_ref());
    let tls = [api, cluster.admin_tls.as_ref()].into_iter().flatten().map(|tls| tls.cert.clone());
    let found = files(cluster).into_iter().chain(tls).filter(|file| file.exists());
    let judged: Vec<Judgment> = found.map(|file| judge_file(file, SystemTime::now())).collect();
    match (judged.is_empty(), cluster.security.mode) {
        (true, SecurityMode::Mtls) => vec![Judgment::ok("certificates", "none yet: the first `up` makes them")],
        _ => judged,
    }
}

fn files(cluster: &Cluster) -> Vec<PathBuf> {
    let names = cluster.hosts.iter().map(|host| host.name.as_str()).chain([members::SUPERVISOR.1]);
    match (&cluster.security.mode, &cluster.security.files) {
        (SecurityMode::Insecure, _) => Vec::new(),
        (SecurityMode::Mtls, Some(named)) => {
            let mut files: Vec<PathBuf> =
                [named.ca.clone()].into_iter().chain(names.map(|name| named.of(name).cert)).collect();
            files.dedup();
            files
        }
        (SecurityMode::Mtls, None) => {
            let own = names.map(|name| members::identity_folder(cluster, name).join(HOST_FILE));
            [members::ca_folder(cluster).join(CA_FILE)].into_iter().chain(own).collect()
        }
    }
}

fn judge_file(file: PathBuf, now: SystemTime) -> Judgment {
    let info = fs::read_to_string(&file).map_err(|error| error.to_string());
    let info = info.and_then(|pem| CertificateInfo::from_pem(&pem).map_err(|error| error.to_string()));
    match info {
        Ok(info) => judge(&format!("{} ({})", info.name, file.display()), &info.validity, now),
        Err(cause) => Judgment::error(
            "certificate",
            format!("{}: {cause}", file.display()),
            "put a PEM certificate there, or take it away: those of data_dir are made anew",
        ),
    }
}

fn judge(whose: &str, Validity { not_before, not_after }: &Validity, now: SystemTime) -> Judgment {
    let days = |seconds: f64| (seconds / DAY_SECONDS as f64).ceil() as i64;
    let (begins, ends) = ((*not_before - now).as_seconds_f64(), (*not_after - now).as_seconds_f64());
    let renew =
        "run `asterism cert init` where the authority's key is, or issue another; `asterism cert show` lists them";
    if begins > 0.0 {
        let found = format!("{whose} is accepted in {} days at the earliest", days(begins));
        return Judgment::error("certificate", found, "set this machine's clock, or issue another");
    }
    match ends {
        ends if ends <= 0.0 => {
            let ago = (-ends / DAY_SECONDS as f64) as i64;
            Judgment::error("certificate", format!("{whose} ended {ago} days ago"), renew)
        }
        ends if ends < SOON.as_secs_f64() => {
            Judgment::warning("certificate", format!("{whose} ends in {} days", days(ends)), renew)
        }
        ends => Judgment::ok("certificate", format!("{whose} is good for {} days", days(ends))),
    }
}

#[cfg(test)]
mod tests {
    use asterism_transport::certificates::Identity;

    use super::{super::Verdict, *};

    #[test]
    fn a_certificate_is_early_good_near_its_end_or_over() {
        let (now, day) = (SystemTime::now(), Duration::from_secs(DAY_SECONDS));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cert.pem");
        for (from, lifetime, expected, words) in [
            (now, 90 * day, Verdict::Ok, "is good for 90 days"),
            (now, 20 * day, Verdict::Warning, "ends in 20 days"),
            (now - 40 * day, 30 * day, Verdict::Error, "ended 10 days ago"),
            (now + 5 * day, 30 * day, Verdict::Error, "is accepted in 5 days"),
        ] {
            let made = Identity::self_signed("api", Validity::starting(from, lifetime)).unwrap();
            fs::write(&file, &made.certificate).unwrap();
            let judged = judge_file(file.clone(), now);
            assert_eq!(judged.verdict, expected, "{judged:?}");
            assert!(judged.found.contains(words) && judged.found.contains("cert.pem"), "{judged:?}");
        }
        fs::write(&file, "no certificate").unwrap();
        assert_eq!(judge_file(file, now).verdict, Verdict::Error);
    }
}
