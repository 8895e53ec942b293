# What the scripts of this folder share. Sourced from the repository's root.

# Ends a script that a machine cannot run, loudly; it fails where nothing may be skipped.
skip() {
  echo "SKIPPED, nothing was tested: $1" >&2
  [ "${ASTERISM_REQUIRE:-}" != all ]
  exit
}
