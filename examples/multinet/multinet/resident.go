package multinet

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
)

// ResidentState returns the directory in which the daemon with the records in
// stateDir notes which types of plugins are resident.
func ResidentState(stateDir string) string { return stateDir + ".relay" }

// A served is an Exec that finds no executable for a type that is noted in dir: only
// the resident plugin can detach what it has attached.
type served struct {
	invoke.Exec

	dir string
}

// FindInPath fails with code 11 for the type of a resident plugin, unless the Exec
// below has it: it then returns a path that is not absolute.
func (x served) FindInPath(plugin string, paths []string) (string, error) {
	path, err := x.Exec.FindInPath(plugin, paths)
	if err == nil && !filepath.IsAbs(path) {
		return path, nil
	}
	note := filepath.Join(x.dir, plugin)
	if _, noteErr := os.Lstat(note); noteErr == nil {
		return "", &residentError{note}
	}
	return path, err
}

// A residentError is why an executable is not run: the type is noted.
type residentError struct{ note string }

func (e *residentError) Error() string {
	return fmt.Sprintf("only a resident plugin of multinetd serves this type (to use an executable again, remove %s)", e.note)
}

func (*residentError) CNICode() uint { return types.ErrTryAgainLater }
func (*residentError) Unwrap() error { return delegate.ErrNotRun }
