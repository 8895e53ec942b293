//! `cert init|show|token|revoke`: the cluster's own CA, the certificates it issued, tokens to get more, and those that count no
//! more. Starts nothing.

use std::{
    collections::BTreeSet,
    fs,
    path::PathBuf,
    time::{Duration, SystemTime},
};

use asterism_transport::certificates::{CA_FILE, CertificateInfo, HOST_FILE, MemberRole};
use clap::{Args, Subcommand};
use serde::Serialize;

use super::jobs::session::lifetime;
use crate::{
    api::admin::Token,
    certificates::{
        credentials,
        renewal::ASK_RENEWAL_EVERY as REACHES_NODES,
        revocation::{self, Issued},
    },
    cli::output::{self, Table},
    client::Client,
    cluster::{Cluster, file::SecurityMode},
    data_dir::private,
    error::{CliError, Exit},
    globals::{Format, Globals},
    observe::logging,
};

/// `asterism cert`
#[derive(Debug, Subcommand)]
pub enum CertVerb {
    /// Make the cluster's CA and a certificate for every process of the cluster file
    Init,
    /// Show the cluster's certificates
    Show,
    /// Make a token with which a node gets certificates from the running supervisor
    Token(TokenArgs),
    /// Have certificates count no more, those of a process or one by its serial number, on every machine and without a restart
    Revoke(RevokeArgs),
}

/// `asterism cert token`
#[derive(Args, Debug)]
pub struct TokenArgs {
    /// The node that it is for, as the cluster file has it; may be left out where there is one
    #[arg(long, value_name = "NODE")]
    pub node: Option<String>,
    /// How long it can be used, such as 90s, 30m, 2h, 1d
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = lifetime)]
    pub ttl: Duration,
    /// Write the token to this file, readable by its owner alone, instead of printing it
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
}

/// `asterism cert revoke`
#[derive(Args, Debug)]
pub struct RevokeArgs {
    /// Name of a process, or serial number, as `cert show` has them
    #[arg(value_name = "NAME|SERIAL")]
    pub which: String,
}

/// Runs a verb of the group.
pub fn run(globals: &Globals, verb: CertVerb) -> Result<Exit, CliError> {
    match verb {
        CertVerb::Init => init(globals, &certified(globals)?),
        CertVerb::Show => show(globals, &certified(globals)?),
        CertVerb::Token(args) => token(globals, &args),
        CertVerb::Revoke(args) => revoke(globals, &certified(globals)?, &args),
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
    let folder = crate::certificates::members::ca_folder(cluster);
    credentials::create_authority(cluster)?;
    let members = cluster.hosts.iter().map(|host| host.member()).chain([crate::certificates::members::SUPERVISOR]);
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
    let node = node_of(globals, args)?;
    let made = Client::find(globals)?.create_join_token(&node, args.ttl)?;
    match (&args.save, globals.format) {
        (Some(file), _) => private::replace(file, format!("{}\n", made.token).as_bytes())
            .map_err(|error| private::refused(file, "write", &error))?,
        (None, Format::Table) => output::print(&format!("{}\n", made.token))?,
        (None, format) => output::print_json(&made, format)?,
    }
    let Token { join, supervisor, new_node, .. } = made;
    let hosts = if new_node { " --hosts 'context x2'" } else { "" };
    globals.note(
        "put the token into a file on the node, say join-token, beside the cluster file; within the time, there:",
    );
    globals.note(format_args!(
        "asterism node --join {supervisor} --token-file join-token --token-from {join} -f cluster.toml --name {node}{hosts}"
    ));
    Ok(Exit::Success)
}

/// The node that a token is for.
fn node_of(globals: &Globals, args: &TokenArgs) -> Result<String, CliError> {
    if let Some(node) = &args.node {
        return Ok(node.clone());
    }
    let cluster = globals.cluster()?;
    let nodes: BTreeSet<&str> = cluster.hosts.iter().map(|host| host.node.as_str()).collect();
    match nodes.into_iter().collect::<Vec<_>>()[..] {
        [only] => Ok(only.to_owned()),
        ref nodes => {
            Err(CliError::usage(format!("the cluster file has {} nodes, and a token is for one", nodes.len()))
                .hint(format!("add --node and one of {}", nodes.join(", "))))
        }
    }
}

/// Revokes, and makes new certificates of what lies here: their processes take them without a restart.
fn revoke(globals: &Globals, cluster: &Cluster, args: &RevokeArgs) -> Result<Exit, CliError> {
    let revoked = revocation::revoke(cluster, &args.which, SystemTime::now())?;
    credentials::renew(cluster)?;
    globals.note(format_args!(
        "{} certificates count no more: processes here refuse them within seconds, nodes that joined by token within {} s",
        revoked.len(),
        REACHES_NODES.as_secs()
    ));
    output::print_rows(&revoked, globals.format, |rows| {
        let mut table = Table::new(["SERIAL", "NAME"]);
        for row in rows {
            table.row([row.serial.clone(), row.name.clone().unwrap_or_else(|| "-".into())]);
        }
        table
    })?;
    Ok(Exit::Success)
}

/// One certificate.
#[derive(Serialize)]
struct CertificateRow {
    name: String,
    issuer: String,
    authority: bool,
    #[serde(serialize_with = "word")]
    role: Option<MemberRole>,
    not_after: String,
    serial: String,
    revoked: bool,
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
            let names = crate::certificates::members::members(cluster).map(|(_, name)| named.of(name).cert);
            files.extend(names.filter(|file| file.exists()));
            files.dedup();
        }
        None => {
            files.push(crate::certificates::members::ca_folder(cluster).join(CA_FILE));
            let issued = crate::certificates::members::members(cluster)
                .map(|(_, name)| crate::certificates::members::identity_folder(cluster, name).join(HOST_FILE));
            files.extend(issued.filter(|file| file.exists()));
        }
    }
    let mut rows = files.into_iter().map(row).collect::<Result<Vec<_>, _>>()?;
    rows.extend(elsewhere(cluster, &rows)?);
    let revoked = revocation::serials(cluster);
    rows.iter_mut().for_each(|row| row.revoked = revoked.contains(&row.serial));
    output::print_rows(&rows, globals.format, |rows| {
        let mut table = Table::new(["NAME", "ISSUER", "KIND", "NOT AFTER", "SERIAL", "FILE"]);
        for row in rows {
            let kind = match (row.authority, row.role) {
                (true, _) => "authority",
                (false, role) => role.map_or("-", MemberRole::word),
            };
            let file = row.file.display().to_string();
            let ends = if row.revoked { "revoked".to_owned() } else { row.not_after.clone() };
            table.row([row.name.clone(), row.issuer.clone(), kind.into(), ends, row.serial.clone(), file]);
        }
        table
    })?;
    Ok(Exit::Success)
}

/// What nodes were given that keep it elsewhere.
fn elsewhere(cluster: &Cluster, here: &[CertificateRow]) -> Result<Vec<CertificateRow>, CliError> {
    let given = revocation::issued(cluster)?.into_iter();
    let given = given.filter(|given| here.iter().all(|row| row.serial != given.serial));
    let row = |given: Issued| CertificateRow {
        issuer: cluster.name.clone(),
        authority: false,
        role: MemberRole::ALL.into_iter().find(|role| role.word() == given.role),
        not_after: given.not_after,
        serial: given.serial,
        revoked: false,
        file: PathBuf::from("-"),
        name: given.name,
    };
    Ok(given.map(row).collect())
}

fn row(file: PathBuf) -> Result<CertificateRow, CliError> {
    let refused = |cause: String| {
        CliError::new(Exit::Authentication, format!("{}: {cause}", file.display()))
            .hint("`asterism cert init` makes the cluster's certificates")
    };
    let pem = fs::read_to_string(&file).map_err(|error| refused(error.to_string()))?;
    let info = CertificateInfo::from_pem(&pem).map_err(|error| refused(error.to_string()))?;
    Ok(CertificateRow {
        name: info.name,
        issuer: info.issuer,
        authority: info.is_authority,
        role: info.member.map(|member| member.role),
        not_after: info.validity.not_after.date().to_string(),
        serial: info.serial,
        revoked: false,
        file,
    })
}
