// Package publish has a network of multinet published in front of the primary
// one: package autoconf, with what the program and the daemon want of it alike.
package publish

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/autoconf"
)

const (
	// ConfDir is where runtimes look for networks.
	ConfDir = "/etc/cni/net.d"

	// Output is the name of the published file, without its extension. Program
	// and daemon have one: whichever is installed takes over from the other.
	Output = "00-multinet"

	// Network is the name of the published network. Records are kept under it,
	// so it must not change with the primary network.
	Network = "multinet"
)

// Manager returns what publishes a network of template as the file output, in
// front of the first in dir that a pod can do with.
func Manager(dir, output string, template netconf.Plugin) *autoconf.Manager {
	return &autoconf.Manager{
		Dir: dir, Output: output, Template: template, Accept: accept, Lock: Lock(output),
		OwnTypes: OwnTypes(),
	}
}

// OwnTypes are the types of the meta-plugins in the manner of Multus. In front
// of one another two would attach what a pod selects, or take each other for
// the primary network.
func OwnTypes() []string { return []string{"multinet", "multinet-shim", "multus", "multus-shim"} }

// Lock is the file that whoever publishes output, or removes it, has locked: one
// for each directory, and in it, for that is what all of them see the same,
// whichever container they run in. Runtimes do not look into its directory.
func Lock(output string) string { return filepath.Join(filepath.Dir(output), ".multinet", "lock") }

// Uninstall removes what m has published, and its lock.
func Uninstall(m *autoconf.Manager) error {
	if _, err := os.Stat(filepath.Dir(m.Output)); errors.Is(err, fs.ErrNotExist) {
		return nil // nor is there a place for the lock
	}
	if err := m.Uninstall(); err != nil {
		return err
	}
	// Who has taken it meanwhile sees that it is gone, and makes another.
	if err := os.Remove(m.Lock); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_ = os.Remove(filepath.Dir(m.Lock)) // unless there is another
	return nil
}

// accept refuses a network of loopback alone, which no pod can do with.
func accept(f netconf.File) bool {
	for _, p := range f.Network.Plugins() {
		if p.Type() != "loopback" {
			return true
		}
	}
	return false
}

// Annotations has the runtime pass on the annotations of pods, unless the
// template says something of that itself.
func Annotations() netconf.Edit {
	return netconf.In("capabilities", netconf.Default("io.kubernetes.cri.pod-annotations", true))
}
