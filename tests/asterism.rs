//! The command line, unchanged, as a binary of this crate.

fn main() -> std::process::ExitCode {
    asterism::cli::main()
}
