package devinfo_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/metacni/metacni/delegate/devinfo"
	"github.com/metacni/metacni/internal/nodetest"
)

func TestFilesThatCannotBeUsedAreErrors(t *testing.T) {
	t.Parallel()
	for name, make := range map[string]func(path string) error{
		"not JSON":     func(path string) error { return os.WriteFile(path, []byte("{"), 0o600) },
		"another type": func(path string) error { return os.WriteFile(path, []byte(`{"pci":[]}`), 0o600) },
		"large":        func(path string) error { return os.WriteFile(path, []byte(strings.Repeat(" ", 65<<10)), 0o600) },
		"a directory":  func(path string) error { return os.Mkdir(path, 0o700) },
		"a FIFO":       func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"a link":       func(path string) error { return os.Symlink("../../../../etc/passwd", path) },
	} {
		root, d := node(t)
		write(t, filepath.Join(root, "etc/passwd"), pci)
		// of an attachment
		a := d.Assign(attachment(t, devinfo.Capability, ""))
		nodetest.OK(t, errors.Join(d.Fill(a), make(at(root, a.Files[0]))))
		if got, err := devinfo.Load(root, a); got != nil || err == nil || !strings.Contains(err.Error(), "device information of net1") {
			t.Errorf("%s: %v, %v", name, got, err)
		}
		// of a device plugin
		b := d.Assign(attachment(t, "", "id"))
		dp := filepath.Join(root, "run/k8s.cni.cncf.io/devinfo/dp/vendor.example-vf-id-device.json")
		nodetest.OK(t, errors.Join(os.MkdirAll(filepath.Dir(dp), 0o755), make(dp)))
		err := d.Fill(b)
		got, loadErr := devinfo.Load(root, b)
		if got != nil || err == nil && loadErr == nil {
			t.Errorf("%s of a device plugin: %v, %v, %v", name, got, err, loadErr)
		}
	}
}
