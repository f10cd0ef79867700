"""Fetches one pinned source distribution and unpacks it: fetch_sdist.py NAME-VERSION.tar.gz SHA256 FOLDER.

`pip download` would run the package's own build to ask for its metadata, so this takes pip's index, certificate and proxy
settings but reads the file alone. A folder that already holds this very file is left as it is.
"""

import hashlib
import io
import pathlib
import shutil
import sys
import tarfile


def download(name):
  """The file's bytes, from the index that pip is set up for."""
  from pip._internal.commands.index import IndexCommand  # slow to import, and needed once

  class Fetch(IndexCommand):
    data = b""

    def run(self, options, args):
      with self._build_session(options) as session:
        finder = self._build_package_finder(options, session)
        links = [c.link for c in finder.find_all_candidates(package) if c.link.filename == name]
        if not links:
          return 1
        response = session.get(links[0].url_without_fragment)
        response.raise_for_status()
        self.data = response.content
      return 0

  package = name.rsplit("-", 1)[0]
  fetch = Fetch("index", "")
  if fetch.main(["--quiet", "--no-binary", package, name]) != 0:
    sys.exit(f"fetch_sdist.py: the package index did not give {name}")
  return fetch.data


def main(name, digest, folder):
  stamp = folder / "sha256"
  if stamp.is_file() and stamp.read_text() == digest:
    return
  data = download(name)
  if hashlib.sha256(data).hexdigest() != digest:
    sys.exit(f"fetch_sdist.py: {name} from the package index is not the file that is pinned (SHA-256 {digest})")
  fresh = folder.with_name(folder.name + ".new")
  shutil.rmtree(folder, ignore_errors=True)
  shutil.rmtree(fresh, ignore_errors=True)
  with tarfile.open(fileobj=io.BytesIO(data)) as archive:
    archive.extractall(fresh)  # safe: the hash says whose paths these are
  (fresh / name.removesuffix(".tar.gz")).rename(folder)
  fresh.rmdir()
  stamp.write_text(digest)


main(sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3]))
