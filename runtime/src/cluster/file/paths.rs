//! The paths of a cluster file: where relative ones start, and what `~` means in them. Looks at no disk.

use std::path::{Path, PathBuf};

use super::{ClusterFile, FileError};

/// Every path of the file that processes read.
fn read_paths(file: &mut ClusterFile) -> impl Iterator<Item = &mut PathBuf> {
    let security = &mut file.security;
    let paths = [&mut security.ca, &mut security.cert, &mut security.key, &mut security.token_file];
    let models = file.model.iter_mut().map(|model| &mut model.path);
    let heads = file.models.heads.values_mut().map(|heads| &mut heads.path);
    let (api, standby) = (&mut file.api, &mut file.standby);
    let api =
        [&mut api.api_key_file, &mut api.tls_cert, &mut api.tls_key, &mut api.admin_tls_cert, &mut api.admin_tls_key];
    let secrets = [&mut standby.ca, &mut standby.cert, &mut standby.key, &mut standby.password_file];
    let standby = secrets.into_iter().chain([&mut standby.shared_dir]);
    paths.into_iter().chain(models).flatten().chain(heads).chain(api.into_iter().flatten()).chain(standby.flatten())
}

/// `file` with the paths that are relative to `directory` made absolute.
pub fn anchored(mut file: ClusterFile, directory: &Path) -> ClusterFile {
    for path in read_paths(&mut file) {
        *path = directory.join(&*path);
    }
    file
}

/// `file`, which another machine wrote, with the paths that this one has for itself: those of its `own` file.
pub fn with_own_paths(mut file: ClusterFile, own: &ClusterFile) -> ClusterFile {
    file.cluster.data_dir.clone_from(&own.cluster.data_dir);
    for model in file.model.iter_mut() {
        if let Some(kept) = own.model.iter().find(|kept| kept.name == model.name) {
            model.path.clone_from(&kept.path);
        }
    }
    file.standby.clone_from(&own.standby);
    let (security, kept) = (&mut file.security, &own.security);
    security.ca.clone_from(&kept.ca);
    security.cert.clone_from(&kept.cert);
    security.key.clone_from(&kept.key);
    security.token_file.clone_from(&kept.token_file);
    for (name, heads) in &own.models.heads {
        file.models.heads.entry(name.clone()).and_modify(|known| known.path.clone_from(&heads.path));
    }
    file
}

/// Puts `home` in the place of a `~` that a path begins with, as a shell does.
pub(super) fn at_home(file: &mut ClusterFile, home: Option<&str>) -> Result<(), FileError> {
    let mut data_dir = file.cluster.data_dir.take();
    let done = read_paths(file).chain(data_dir.as_mut()).try_for_each(|path| {
        let Some(first) = path.to_str().and_then(|text| text.split('/').next()).filter(|name| name.starts_with('~'))
        else {
            return Ok(());
        };
        let refused = |cause: &str| FileError::Home { path: path.display().to_string(), cause: cause.to_owned() };
        match (first, home.filter(|home| !home.is_empty())) {
            ("~", Some(home)) => {
                *path = Path::new(home).join(path.strip_prefix("~").expect("its first name"));
                Ok(())
            }
            ("~", None) => Err(refused("HOME is not set here, so that ~ means nothing; write the whole path")),
            _ => Err(refused("a shell would look for another user's home; write the whole path, or ./ before it")),
        }
    });
    file.cluster.data_dir = data_dir;
    done
}

#[cfg(test)]
mod tests {
    use super::super::parse;

    #[test]
    fn a_machine_keeps_its_own_paths() {
        let file = |folder: &str, hosts: &str| {
            let paths = "version = 1\n[cluster]\ndata_dir = \"DIR/data\"\n[model]\npath = \"DIR/tiny\"\n[security]\ntoken_file = \"DIR/token\"\n[models.heads.a]\npath = \"DIR/heads\"\n";
            parse(&(paths.replace("DIR", folder) + hosts), []).unwrap()
        };
        let hosts = "[[host]]\nname = \"a\"\nrole = \"context\"\n";
        assert_eq!(super::with_own_paths(file("there", hosts), &file("here", "")), file("here", hosts));
    }

    #[test]
    fn a_tilde_is_home_wherever_the_file_names_a_path() {
        let text = "version = 1\n[cluster]\ndata_dir = \"~/data\"\n[model]\npath = \"~/models/tiny\"\n[api]\napi_key_file = \"~\"\n";
        let home = |home: &str| [("HOME".to_owned(), home.to_owned())];
        let file = parse(text, home("/home/ada")).unwrap();
        let paths = [file.model.first.path, file.cluster.data_dir, file.api.api_key_file].map(|path| path.unwrap());
        assert_eq!(
            paths.map(|path| path.display().to_string()),
            ["/home/ada/models/tiny", "/home/ada/data", "/home/ada/"]
        );
        for (text, home, cause) in [
            (text, vec![], "path \"~/models/tiny\": HOME is not set here"),
            ("version = 1\n[model]\npath = \"~ada/tiny\"\n", home("/home/me").to_vec(), "another user's home"),
        ] {
            let stated = parse(text, home).unwrap_err().to_string();
            assert!(stated.contains(cause), "{stated}");
        }
        let plain = parse("version = 1\n[model]\npath = \"./~ada/a~b\"\n", []).unwrap();
        assert_eq!(plain.model.first.path.unwrap().to_str(), Some("./~ada/a~b"));
    }
}
