"""Make a release: `python -m tools.release` builds wheel, images, chart, bills of materials and checksums into dist/.

`readiness` decides whether the tree may be released, `build` makes the files, `version_change` moves the project to the
next version. Tags and uploads are left to people.
"""
