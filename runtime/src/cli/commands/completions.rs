//! `completions` and `man`: what shells and manual readers know of the command line, made from the command line itself.

use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::Shell;

use crate::{
    cli::output,
    error::{CliError, Exit},
    globals::Globals,
};

/// `asterism completions`
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// Whose script
    pub shell: Shell,
}

/// `asterism man`
#[derive(Args, Debug)]
pub struct ManArgs {
    /// Folder to write them to, made if it is not there
    pub folder: PathBuf,
}

/// Prints a completion script.
pub fn completions(globals: &Globals, mut command: Command, args: &CompletionsArgs) -> Result<Exit, CliError> {
    globals.refuse_json("completions", "it prints a shell's script")?;
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "asterism", &mut script);
    output::print(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Success)
}

/// Writes a page for each command and subcommand.
pub fn man(globals: &Globals, command: Command, args: &ManArgs) -> Result<Exit, CliError> {
    globals.refuse_json("man", "it writes files and prints nothing")?;
    let written = std::fs::create_dir_all(&args.folder)
        .and_then(|()| clap_mangen::generate_to(command.flatten_help(false), &args.folder));
    written.map_err(|error| {
        CliError::usage(format!("cannot write manual pages to {}: {error}", args.folder.display()))
            .hint("name a folder that this user may write")
    })?;
    globals.note(format_args!("manual pages are in {0}; read one with `man {0}/asterism.1`", args.folder.display()));
    Ok(Exit::Success)
}
