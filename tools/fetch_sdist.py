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

from pip._internal.commands.index import IndexCommand


class Fetch(IndexCommand):
  def run(self, options, args):
    name, digest, folder = args[0], args[1], pathlib.Path(args[2])
    stamp = folder / "sha256"
    if stamp.is_file() and stamp.read_text() == digest:
      return 0
    with self._build_session(options) as session:
      finder = self._build_package_finder(options, session)
      candidates = finder.find_all_candidates(name.rsplit("-", 1)[0])
      links = [c.link.url_without_fragment for c in candidates if c.link.filename == name]
      if not links:
        sys.exit(f"fetch_sdist.py: the package index has no {name}")
      data = session.get(links[0]).content
    if hashlib.sha256(data).hexdigest() != digest:
      sys.exit(f"fetch_sdist.py: {links[0]} is not the file that is pinned (SHA-256 {digest})")
    shutil.rmtree(folder, ignore_errors=True)
    fresh = folder.with_name(folder.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
      archive.extractall(fresh)  # safe: the hash says whose paths these are
    (fresh / name.removesuffix(".tar.gz")).rename(folder)
    fresh.rmdir()
    stamp.write_text(digest)
    return 0


package = sys.argv[1].rsplit("-", 1)[0]
sys.exit(Fetch("index", "").main(["--quiet", "--no-binary", package, *sys.argv[1:]]))
