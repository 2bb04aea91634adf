//! Device names as `-g`, `-L` and `-P` want them.

use std::{fs, path::Path};

use server::api::Device;

use crate::args::DeviceNames;

impl DeviceNames {
    /// The name of `device`.
    pub(crate) fn of(&self, device: &Device) -> String {
        if device.kind == "root" {
            return device.name.clone();
        }
        if self.guids {
            return device.guid.clone();
        }
        let Some(path) = device.path.as_deref().filter(|_| device.present) else {
            return device.name.clone();
        };
        let resolved = match fs::canonicalize(path) {
            Ok(resolved) if self.follow => resolved.to_string_lossy().into_owned(),
            _ => path.to_owned(),
        };
        match (self.full, self.follow) {
            (true, _) => resolved,
            (false, true) => short(&resolved),
            (false, false) => device.name.clone(),
        }
    }
}

/// The last component of a path in `/dev`; other paths as they are.
fn short(path: &str) -> String {
    match Path::new(path).strip_prefix("/dev") {
        Ok(name) => name.file_name().unwrap_or(name.as_os_str()).to_string_lossy().into_owned(),
        Err(_) => path.to_owned(),
    }
}
