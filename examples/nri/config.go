package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/metacni/metacni/delegate/plugin"
)

// Config says how the plugin registers, and where it finds and keeps things.
// What is zero has its default.
type Config struct {
	// Index and Name are what the plugin registers as, unless the runtime has
	// launched it, and Socket is where.
	Index  string `json:"index"`
	Name   string `json:"name"`
	Socket string `json:"socket"`

	ConfDir  string `json:"confDir"`  // networks, looked up by name
	BinDir   string `json:"binDir"`   // CNI plugins
	StateDir string `json:"stateDir"` // records

	// Margin is how long before the runtime's deadline it has its answer. Zero
	// is 15 % of its timeout, and 300 ms at least.
	Margin Duration `json:"margin"`

	// Sweep is the time from one look at the records to the next.
	Sweep Duration `json:"sweep"`

	// AttachRunning attaches pods that were running already when the plugin
	// came. Without it they are only counted: an interface that turns up in a
	// running container surprises.
	AttachRunning bool `json:"attachRunning"`
}

// A Duration is a [time.Duration] that is written as in "1m30s".
type Duration struct{ time.Duration }

// UnmarshalText parses what [time.ParseDuration] does, but nothing negative.
func (d *Duration) UnmarshalText(text []byte) (err error) {
	if d.Duration, err = time.ParseDuration(string(text)); err == nil && d.Duration < 0 {
		err = fmt.Errorf("%q is negative", text)
	}
	return err
}

// With returns c with the keys of a JSON object in their place. It fails for
// what is not one and for keys that are not known.
func (c Config) With(text []byte) (Config, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return Config{}, fmt.Errorf("nri: configuration: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Config{}, errors.New("nri: configuration: more than one JSON value")
	}
	return c, nil
}

// complete returns c with its defaults, or what is wrong with it.
func (c Config) complete() (Config, error) {
	c.Index = cmp.Or(c.Index, "90")
	c.Name = cmp.Or(c.Name, "metacni")
	c.Socket = cmp.Or(c.Socket, api.DefaultSocketPath)
	c.ConfDir = cmp.Or(c.ConfDir, "/etc/cni/nri/net.d")
	c.BinDir = cmp.Or(c.BinDir, "/opt/cni/bin")
	c.Sweep = cmp.Or(c.Sweep, Duration{time.Minute})
	errs := []error{api.CheckPluginIndex(c.Index), api.CheckPluginName(c.Name)}
	for _, dir := range []struct{ key, path string }{{"confDir", c.ConfDir}, {"binDir", c.BinDir}} {
		if !filepath.IsAbs(dir.path) {
			errs = append(errs, fmt.Errorf("%s: %q is not an absolute path", dir.key, dir.path))
		}
	}
	var err error
	c.StateDir, err = plugin.CheckStateDir(cmp.Or(c.StateDir, "/var/lib/cni/nri"))
	if err != nil {
		err = fmt.Errorf("stateDir: %w", err)
	}
	if err := errors.Join(append(errs, err)...); err != nil {
		return Config{}, fmt.Errorf("nri: configuration: %w", err)
	}
	return c, nil
}

const (
	// leastMargin is for the answer's way to the runtime, and for a machine
	// that is busy.
	leastMargin = 300 * time.Millisecond

	// silentTimeout is what a request without a deadline is taken to have.
	silentTimeout = api.DefaultPluginRequestTimeout
)

// answerBy is when a request must have its answer that came at now with a
// deadline.
func (c Config) answerBy(now, deadline time.Time) time.Time {
	margin := cmp.Or(c.Margin.Duration, max(leastMargin, deadline.Sub(now)*15/100))
	return deadline.Add(-margin)
}
