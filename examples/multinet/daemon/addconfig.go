package daemon

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/examples/internal/program"
	"github.com/metacni/metacni/examples/multinet/publish"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// An addConfig is the configuration and the CNI_PATH of an ADD. The next daemon reads it from
// disk: from a file with the name of the network, in the directory of records plus ".asked". Who
// may have which network must not depend on when a daemon was started.
type addConfig struct {
	network string         // its name; empty for the daemon's own configuration
	Conf    netconf.Plugin `json:"conf"` // without the keys that are about one container
	CNIPath string         `json:"cniPath"`
}

// newAddConfig returns the addConfig of a request for a network.
func newAddConfig(network string, request []byte, cniPath string) (addConfig, error) {
	p, err := netconf.ParsePlugin(request)
	if err == nil {
		p, err = p.Edit(netconf.Remove("runtimeConfig", "prevResult"))
	}
	return addConfig{network, p, cniPath}, err
}

// args are those of a command with this configuration.
func (a addConfig) args() skel.CmdArgs {
	conf, _ := json.Marshal(a.Conf) // does not fail
	return skel.CmdArgs{StdinData: conf, Path: a.CNIPath}
}

// addConfigs has, for each directory of records, the configuration of the last ADD of each
// network with records there. Its zero value is ready for use, and goroutines may share it.
type addConfigs struct {
	mu   sync.Mutex             // guards what follows
	last map[string][]addConfig // oldest first
}

// note replaces the configuration of the network of a with records in dir.
func (c *addConfigs) note(dir string, a addConfig) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last == nil {
		c.last = make(map[string][]addConfig)
	}
	others := slices.DeleteFunc(c.last[dir], func(b addConfig) bool { return b.network == a.network })
	c.last[dir] = append(others, a)
}

// dirs returns the directories of records, in order.
func (c *addConfigs) dirs() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.last))
}

// newest returns the newest configuration for records in dir, one of dirs.
func (c *addConfigs) newest(dir string) addConfig {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last[dir][len(c.last[dir])-1]
}

// of returns the configuration of a network with records in dir. Before the first ADD of the
// network that is the daemon's own.
func (c *addConfigs) of(dir, network string) addConfig {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range []string{network, ""} {
		if i := slices.IndexFunc(c.last[dir], func(a addConfig) bool { return a.network == name }); i >= 0 {
			return c.last[dir][i]
		}
	}
	return addConfig{}
}

// save writes a to disk for the next daemon, unless it is there already. It keeps the keys of a
// later release.
func (a addConfig) save(dir string) error {
	if !publish.PlainName(a.network) {
		return fmt.Errorf("the network has the name %q", a.network)
	}
	return a.saveAs(filepath.Join(dir+".asked", a.network))
}

// saveAs writes a to a file, unless it is there already.
func (a addConfig) saveAs(file string) error {
	there, missing := program.ReadFile(file)
	saved, _ := netconf.ParsePlugin(there) // what is damaged is replaced
	saved, err := saved.Edit(netconf.Set("conf", a.Conf), netconf.Set("cniPath", a.CNIPath))
	if err != nil {
		return err
	}
	text, _ := saved.MarshalJSON() // does not fail
	if missing == nil && bytes.Equal(there, text) {
		return nil
	}
	return cmp.Or(os.MkdirAll(filepath.Dir(file), 0o700), scratch.WriteFile(file, text))
}

// load notes the configurations that earlier daemons have saved for records in dir. The keys of
// the daemon's file replace theirs, as they do in a request: replace does that. A configuration
// that cannot be read is left out, and the error says so.
func (c *addConfigs) load(dir string, replace netconf.Edit) error {
	files, err := os.ReadDir(dir + ".asked")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, file := range files {
		if strings.HasPrefix(file.Name(), ".") {
			continue // a temporary file
		}
		text, readErr := program.ReadFile(filepath.Join(dir+".asked", file.Name()))
		a, decodeErr := netconf.Decode[addConfig](text)
		edited, editErr := a.Conf.Edit(replace)
		if e := cmp.Or(readErr, decodeErr, editErr); e != nil {
			err = errors.Join(err, fmt.Errorf("network %q: %w", file.Name(), e))
			continue
		}
		c.note(dir, addConfig{file.Name(), edited, a.CNIPath})
	}
	return err
}
