//! `cert init|show`: the cluster's own CA and the certificates it issued. Starts nothing.

use std::{fs, path::PathBuf};

use asterism_transport::certificates::{CA_FILE, CertificateInfo, HOST_FILE};
use clap::Subcommand;
use serde::Serialize;

use crate::{
    cluster::Cluster,
    cluster_file::SecurityMode,
    credentials,
    error::{CliError, Exit},
    globals::Globals,
    output::{self, Table},
};

/// `asterism cert`
#[derive(Debug, Subcommand)]
pub enum CertVerb {
    /// Make the cluster's CA and a certificate for every process of the cluster file
    Init,
    /// Show the cluster's certificates
    Show,
}

/// Runs a verb of the group.
pub fn run(globals: &Globals, verb: CertVerb) -> Result<Exit, CliError> {
    let cluster = globals.cluster()?;
    if cluster.security.mode == SecurityMode::Insecure {
        return Err(CliError::usage("the cluster file says mode = \"insecure\": it uses no certificates")
            .hint("set [security] mode = \"mtls\""));
    }
    match verb {
        CertVerb::Init => init(globals, &cluster),
        CertVerb::Show => show(globals, &cluster),
    }
}

fn init(globals: &Globals, cluster: &Cluster) -> Result<Exit, CliError> {
    if cluster.security.files.is_some() {
        return Err(CliError::usage("the cluster file names ca, cert and key: those are used, and none are made")
            .hint("take them out of [security] to have them made in data_dir"));
    }
    let folder = credentials::ca_folder(cluster);
    credentials::create_authority(cluster, &folder)?;
    let names = cluster.hosts.iter().map(|host| host.name.as_str()).chain([credentials::SUPERVISOR]);
    credentials::provide(cluster, names)?;
    globals.note(format_args!(
        "made the certificate authority of '{}' and {} certificates in {}; keep ca-key.pem to yourself",
        cluster.name,
        cluster.hosts.len() + 1,
        folder.display()
    ));
    show(globals, cluster)
}

/// One certificate.
#[derive(Serialize)]
struct Row {
    name: String,
    issuer: String,
    authority: bool,
    not_after: String,
    file: PathBuf,
}

fn show(globals: &Globals, cluster: &Cluster) -> Result<Exit, CliError> {
    let mut files = Vec::new();
    match &cluster.security.files {
        Some(named) => files.extend([named.ca.clone(), named.cert.clone()]),
        None => {
            files.push(credentials::ca_folder(cluster).join(CA_FILE));
            let names = cluster.hosts.iter().map(|host| host.name.as_str()).chain([credentials::SUPERVISOR]);
            let issued = names.map(|name| credentials::identity_folder(cluster, name).join(HOST_FILE));
            files.extend(issued.filter(|file| file.exists()));
        }
    }
    let rows = files.into_iter().map(row).collect::<Result<Vec<_>, _>>()?;
    output::print_rows(&rows, globals.format, |rows| {
        let mut table = Table::new(["NAME", "ISSUER", "KIND", "NOT AFTER", "FILE"]);
        for row in rows {
            let kind = if row.authority { "authority" } else { "host" };
            let file = row.file.display().to_string();
            table.row([row.name.clone(), row.issuer.clone(), kind.into(), row.not_after.clone(), file]);
        }
        table
    })?;
    Ok(Exit::Success)
}

fn row(file: PathBuf) -> Result<Row, CliError> {
    let refused = |cause: String| {
        CliError::new(Exit::Authentication, format!("{}: {cause}", file.display()))
            .hint("`asterism cert init` makes the cluster's certificates")
    };
    let pem = fs::read_to_string(&file).map_err(|error| refused(error.to_string()))?;
    let info = CertificateInfo::from_pem(&pem).map_err(|error| refused(error.to_string()))?;
    Ok(Row {
        name: info.name,
        issuer: info.issuer,
        authority: info.is_authority,
        not_after: info.validity.not_after.date().to_string(),
        file,
    })
}
