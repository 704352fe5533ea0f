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

	"github.com/metacni/metacni/examples/multinet/publish"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// asked is the configuration and the CNI_PATH of an ADD.
type asked struct {
	network string // its name; empty for the daemon's own configuration
	conf    []byte
	cniPath string
}

// places keeps for each directory of records what the last ADD of each network with
// records there has asked.
type places struct {
	mu   sync.Mutex         // guards what follows
	last map[string][]asked // oldest first
}

// note replaces what was asked for the network of a with records in dir.
func (p *places) note(dir string, a asked) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last == nil {
		p.last = make(map[string][]asked)
	}
	others := slices.DeleteFunc(p.last[dir], func(b asked) bool { return b.network == a.network })
	p.last[dir] = append(others, a)
}

// dirs returns the directories of records, in order.
func (p *places) dirs() []string { return slices.Sorted(maps.Keys(p.all())) }

// all returns for each directory of records what was asked last.
func (p *places) all() map[string]asked {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make(map[string]asked, len(p.last))
	for dir, as := range p.last {
		all[dir] = as[len(as)-1]
	}
	return all
}

// of returns what was asked last for a network with records in dir or, if nothing was, the
// daemon's own configuration.
func (p *places) of(dir, network string) asked {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range []string{network, ""} {
		if i := slices.IndexFunc(p.last[dir], func(a asked) bool { return a.network == name }); i >= 0 {
			return p.last[dir][i]
		}
	}
	return asked{}
}

// A keptAsked is what the next daemon finds of an asked in the directory of records dir plus
// ".asked", in a file with the name of the network. Who may have which network must not depend
// on when a daemon was started.
type keptAsked struct {
	Conf    netconf.Plugin `json:"conf"` // without the keys that are about one container
	CNIPath string         `json:"cniPath,omitempty"`
}

// keep writes a to disk for the next daemon, unless it is there already.
func (a asked) keep(dir string) error {
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
	text, err := json.Marshal(keptAsked{p, a.cniPath})
	if err != nil {
		return err
	}
	file := filepath.Join(dir+".asked", a.network)
	if there, err := readFile(file); err == nil && bytes.Equal(there, text) {
		return nil
	}
	if err := os.MkdirAll(dir+".asked", 0o700); err != nil {
		return err
	}
	return scratch.WriteFile(file, text)
}

// recall returns what was asked of earlier daemons with records in dir. The keys of the
// daemon's file replace those that were asked, as they do in a request. What cannot be read
// is left out, and the error says so.
func (c *config) recall(dir string) (all []asked, err error) {
	files, err := os.ReadDir(dir + ".asked")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, file := range files {
		if strings.HasPrefix(file.Name(), ".") {
			continue // a temporary file
		}
		a := asked{network: file.Name()}
		text, readErr := readFile(filepath.Join(dir+".asked", a.network))
		kept, decodeErr := netconf.Decode[keptAsked](text)
		p, editErr := kept.Conf.Edit(c.replace)
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
