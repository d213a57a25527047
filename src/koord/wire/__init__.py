"""Wire formats of programs that koord talks to, without any I/O: NRI over ttrpc, CRI and the runtime hooks of the proxy."""
