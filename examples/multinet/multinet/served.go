package multinet

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
)

// ResidentState is where the daemon that keeps its records in stateDir notes the
// types of plugins that delegates serve, which stay and are called over a socket.
func ResidentState(stateDir string) string { return stateDir + ".relay" }

// A served Exec finds no executable of a type that is noted in dir: what such a
// delegate has attached is for it to detach.
type served struct {
	invoke.Exec

	dir string
}

// FindInPath fails with code 11 for a type that only a delegate may serve, unless
// the Exec below has that delegate: its path is then no file's.
func (x served) FindInPath(plugin string, paths []string) (string, error) {
	path, err := x.Exec.FindInPath(plugin, paths)
	if err == nil && !filepath.IsAbs(path) {
		return path, nil
	}
	note := filepath.Join(x.dir, plugin)
	if _, noteErr := os.Lstat(note); noteErr == nil {
		return "", types.NewError(types.ErrTryAgainLater, fmt.Sprintf(
			"only a delegate of the daemon multinetd serves this type (to have an executable serve it again, remove %s)", note), "")
	}
	return path, err
}
