//go:build e2e && linux

package realhost

// Do runs f in the namespaces of the host.
func (h *Host) Do(f func() error) error { return h.do(f) }
