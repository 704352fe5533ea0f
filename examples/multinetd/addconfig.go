package main

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

	"github.com/metacni/metacni/examples/internal/daemon"
	"github.com/metacni/metacni/examples/multinet/publish"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// An addConfig is the configuration and the CNI_PATH of an ADD.
type addConfig struct {
	network string // its name; empty for the daemon's own configuration
	conf    []byte
	cniPath string
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
func (c *addConfigs) dirs() []string { return slices.Sorted(maps.Keys(c.all())) }

// all returns the newest configuration for each directory of records.
func (c *addConfigs) all() map[string]addConfig {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make(map[string]addConfig, len(c.last))
	for dir, as := range c.last {
		all[dir] = as[len(as)-1]
	}
	return all
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

// A savedConfig is an addConfig as the next daemon reads it from disk: from a file with the name
// of the network, in the directory of records plus ".asked". Who may have which network must not
// depend on when a daemon was started.
type savedConfig struct {
	Conf    netconf.Plugin `json:"conf"` // without the keys that are about one container
	CNIPath string         `json:"cniPath,omitempty"`
}

// save writes a to disk for the next daemon, unless it is there already.
func (a addConfig) save(dir string) error {
	if !publish.PlainName(a.network) {
		return fmt.Errorf("the network has the name %q", a.network)
	}
	p, err := netconf.ParsePlugin(a.conf)
	if err == nil {
		p, err = p.Edit(netconf.Remove("runtimeConfig", "prevResult"))
	}
	if err != nil {
		return err
	}
	text, err := json.Marshal(savedConfig{p, a.cniPath})
	if err != nil {
		return err
	}
	file := filepath.Join(dir+".asked", a.network)
	if there, err := daemon.ReadFile(file); err == nil && bytes.Equal(there, text) {
		return nil
	}
	if err := os.MkdirAll(dir+".asked", 0o700); err != nil {
		return err
	}
	return scratch.WriteFile(file, text)
}

// savedConfigs returns the configurations that earlier daemons have saved for records in dir.
// The keys of the daemon's file replace theirs, as they do in a request: replace does that. A configuration that
// cannot be read is left out, and the error says so.
func savedConfigs(dir string, replace netconf.Edit) (all []addConfig, err error) {
	files, err := os.ReadDir(dir + ".asked")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, file := range files {
		if strings.HasPrefix(file.Name(), ".") {
			continue // a temporary file
		}
		a := addConfig{network: file.Name()}
		text, readErr := daemon.ReadFile(filepath.Join(dir+".asked", a.network))
		kept, decodeErr := netconf.Decode[savedConfig](text)
		p, editErr := kept.Conf.Edit(replace)
		if e := cmp.Or(readErr, decodeErr, editErr); e != nil {
			err = errors.Join(err, fmt.Errorf("network %q: %w", a.network, e))
			continue
		}
		a.conf, _ = json.Marshal(p) // does not fail
		a.cniPath = kept.CNIPath
		all = append(all, a)
	}
	return all, err
}
