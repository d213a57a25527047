"""Write the reference of metrics and alerts, the alert rules and the dashboards."""

from __future__ import annotations

from tools.monitoring.output import ROOT, generated_files


def main() -> None:
    for path, text in generated_files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"monitoring: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
