//go:build e2e && linux

package realhost

// Do runs f in the namespaces of the host.
func (h *Host) Do(f func() error) error { return h.do("", f) }

// Processes returns the processes on the host, or in the containers of [Here].
func (h *Host) Processes() ([]int, error) { return processes(h.ids()) }
