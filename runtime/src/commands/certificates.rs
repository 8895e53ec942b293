//! `cert init|show|token`: the cluster's own CA, the certificates it issued, and tokens to get more. Starts nothing.

use std::{fs, path::PathBuf, time::Duration};

use asterism_transport::certificates::{CA_FILE, CertificateInfo, HOST_FILE, MemberRole};
use clap::{Args, Subcommand};
use serde::Serialize;

use super::session::lifetime;
use crate::{
    client::Client,
    cluster::Cluster,
    cluster_file::SecurityMode,
    credentials,
    error::{CliError, Exit},
    globals::{Format, Globals},
    http::Token,
    logging,
    output::{self, Table},
};

/// `asterism cert`
#[derive(Debug, Subcommand)]
pub enum CertVerb {
    /// Make the cluster's CA and a certificate for every process of the cluster file
    Init,
    /// Show the cluster's certificates
    Show,
    /// Make a token with which one further node gets certificates from the running supervisor
    Token(TokenArgs),
}

/// `asterism cert token`
#[derive(Args, Debug)]
pub struct TokenArgs {
    /// How long it can be used, such as 90s, 30m, 2h, 1d
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = lifetime)]
    pub ttl: Duration,
}

/// Runs a verb of the group.
pub fn run(globals: &Globals, verb: CertVerb) -> Result<Exit, CliError> {
    match verb {
        CertVerb::Init => init(globals, &certified(globals)?),
        CertVerb::Show => show(globals, &certified(globals)?),
        CertVerb::Token(args) => token(globals, &args),
    }
}

/// The cluster of this call, which must use certificates.
fn certified(globals: &Globals) -> Result<Cluster, CliError> {
    let cluster = globals.cluster()?;
    match cluster.security.mode {
        SecurityMode::Mtls => Ok(cluster),
        SecurityMode::Insecure => {
            Err(CliError::usage("the cluster file says mode = \"insecure\": it uses no certificates")
                .hint("set [security] mode = \"mtls\""))
        }
    }
}

fn init(globals: &Globals, cluster: &Cluster) -> Result<Exit, CliError> {
    if cluster.security.files.is_some() {
        return Err(CliError::usage("the cluster file names ca, cert and key: those are used, and none are made")
            .hint("take them out of [security] to have them made in data_dir"));
    }
    let folder = credentials::ca_folder(cluster);
    credentials::create_authority(cluster)?;
    let members = cluster.hosts.iter().map(|host| host.member()).chain([credentials::SUPERVISOR]);
    credentials::provide(cluster, members)?;
    globals.note(format_args!(
        "made the certificate authority of '{}' and {} certificates in {}; keep ca-key.pem to yourself",
        cluster.name,
        cluster.hosts.len() + 1,
        folder.display()
    ));
    show(globals, cluster)
}

/// Prints a token alone, and beside it what to do with it.
fn token(globals: &Globals, args: &TokenArgs) -> Result<Exit, CliError> {
    logging::client(globals);
    let made = Client::find(globals)?.create_join_token(args.ttl)?;
    match globals.format {
        Format::Table => output::print(&format!("{}\n", made.token))?,
        format => output::print_json(&made, format)?,
    }
    let Token { join, supervisor, .. } = made;
    globals.note(
        "put the token into a file on the node, say join-token, beside the cluster file; within the time, there:",
    );
    globals.note(format_args!(
        "asterism node --join {supervisor} --token-file join-token --token-from {join} -f cluster.toml --name NODE"
    ));
    Ok(Exit::Success)
}

/// One certificate.
#[derive(Serialize)]
struct Row {
    name: String,
    issuer: String,
    authority: bool,
    #[serde(serialize_with = "word")]
    role: Option<MemberRole>,
    not_after: String,
    file: PathBuf,
}

fn word<S: serde::Serializer>(role: &Option<MemberRole>, serializer: S) -> Result<S::Ok, S::Error> {
    role.map(MemberRole::word).serialize(serializer)
}

fn show(globals: &Globals, cluster: &Cluster) -> Result<Exit, CliError> {
    let mut files = Vec::new();
    match &cluster.security.files {
        Some(named) => {
            files.push(named.ca.clone());
            let names = members(cluster).map(|(_, name)| named.of(name).cert);
            files.extend(names.filter(|file| file.exists()));
            files.dedup();
        }
        None => {
            files.push(credentials::ca_folder(cluster).join(CA_FILE));
            let issued = members(cluster).map(|(_, name)| credentials::identity_folder(cluster, name).join(HOST_FILE));
            files.extend(issued.filter(|file| file.exists()));
        }
    }
    let rows = files.into_iter().map(row).collect::<Result<Vec<_>, _>>()?;
    output::print_rows(&rows, globals.format, |rows| {
        let mut table = Table::new(["NAME", "ISSUER", "KIND", "NOT AFTER", "FILE"]);
        for row in rows {
            let kind = match (row.authority, row.role) {
                (true, _) => "authority",
                (false, role) => role.map_or("-", MemberRole::word),
            };
            let file = row.file.display().to_string();
            table.row([row.name.clone(), row.issuer.clone(), kind.into(), row.not_after.clone(), file]);
        }
        table
    })?;
    Ok(Exit::Success)
}

/// Every process that shows a certificate, but the agents of nodes.
fn members(cluster: &Cluster) -> impl Iterator<Item = credentials::Named<'_>> {
    cluster.hosts.iter().map(|host| host.member()).chain([credentials::SUPERVISOR])
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
        role: info.member.map(|member| member.role),
        not_after: info.validity.not_after.date().to_string(),
        file,
    })
}
