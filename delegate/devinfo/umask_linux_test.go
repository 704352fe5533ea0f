package devinfo_test

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate/devinfo"
	"github.com/metacni/metacni/internal/nodetest"
)

// Runtimes run plugins with any umask.
func TestEveryoneCanReadTheFilesWhateverTheUmaskIs(t *testing.T) {
	t.Parallel()
	root, d := node(t)
	write(t, filepath.Join(root, "run/k8s.cni.cncf.io/devinfo/dp/vendor.example-vf-id-device.json"), pci)
	private := filepath.Join(root, "run/k8s.cni.cncf.io")
	nodetest.OK(t, os.Chmod(private, 0o711))
	a := d.Assign(attachment(t, devinfo.Capability, "id"))
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_FS)
		if err == nil {
			unix.Umask(0o077)
			err = d.Fill(a)
		}
		done <- err
	}()
	nodetest.OK(t, <-done)
	file := at(root, a.Files[0])
	for path, want := range map[string]os.FileMode{file: 0o444, filepath.Dir(file): 0o755 | os.ModeDir, private: 0o711 | os.ModeDir} {
		if info, err := os.Lstat(path); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v, want mode %v", path, info, err, want)
		}
	}
}
