//! Names as segments of a path. Asks nobody.

use crate::error::CliError;

/// A name as one segment of a path; none that would be another path.
pub(crate) fn segment(name: &str) -> Result<String, CliError> {
    if matches!(name, "" | "." | "..") {
        return Err(
            CliError::usage(format!("'{name}' is no name")).hint("names have letters, digits, '-', '_' and '.'")
        );
    }
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    let escaped = name.bytes().map(|byte| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    });
    Ok(escaped.collect())
}
