//go:build linux

package main

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/template"
	"time"
)

const (
	// mostPeers is the number of peers for which the picture has colours.
	mostPeers = 4

	// limit is how long a command of a peer may take.
	limit = 10 * time.Second
)

// errOne is the answer of a template for a peer that runs one delegate to a request for
// several.
var errOne = errors.New("it runs only one delegate")

//go:embed peers/*.json
var known embed.FS

// A peer is a meta-plugin that the user names. Its configuration is a template, which is
// executed with a request.
type peer struct {
	name string
	path string // of the executable
	conf string // path of the template; if empty the name says which of known
}

var peerNames = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]*$`)

// peers parses NAME=PATH or NAME=PATH,conf=TEMPLATE and appends it to dst.
func peers(dst *[]peer) func(string) error {
	return func(s string) error {
		name, rest, _ := strings.Cut(s, "=")
		path, conf, _ := strings.Cut(rest, ",conf=")
		if !peerNames.MatchString(name) || path == "" {
			return errors.New("want NAME=PATH or NAME=PATH,conf=TEMPLATE, with a name of lower case letters, digits, '.', '_' and '-'")
		}
		if slices.ContainsFunc(*dst, func(p peer) bool { return p.name == name }) {
			return fmt.Errorf("there are two peers %s", name)
		}
		if len(*dst) == mostPeers {
			return fmt.Errorf("there are more than %d peers", mostPeers)
		}
		*dst = append(*dst, peer{name: name, path: path, conf: conf})
		return nil
	}
}

// text returns the text of the peer's template.
func (p peer) text() ([]byte, error) {
	if p.conf != "" {
		return os.ReadFile(p.conf)
	}
	kind, _, _ := strings.Cut(p.name, "-")
	text, err := known.ReadFile("peers/" + kind + ".json")
	if err != nil {
		return nil, errors.New("the form of its configuration is not known: name it multus, multus-..., flannel or flannel-..., or add ,conf=TEMPLATE")
	}
	return text, nil
}

// bring copies the executable and the template into the working directory, because the
// private host hides some directories.
func (p peer) bring(work string) error {
	text, err := p.text()
	if err == nil {
		_, err = parseForm(p.name, text)
	}
	if err != nil {
		return fmt.Errorf("-peer %s: %w", p.name, err)
	}
	path, err := filepath.Abs(p.path) // make changes the working directory: say where it looks
	if err != nil {
		return err
	}
	program, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("-peer %s: %w", p.name, err)
	}
	to := filepath.Join(work, "bin", p.name)
	if _, err := os.Lstat(to); err == nil {
		return fmt.Errorf("-peer %s: this program has a program of that name", p.name)
	}
	return errors.Join(
		os.WriteFile(to, program, 0o755), //nolint:gosec // programs are executable
		os.Mkdir(filepath.Join(work, "peer-"+p.name), 0o700),
		os.WriteFile(filepath.Join(work, p.name+".template"), text, 0o600),
	)
}

func parseForm(name string, text []byte) (*template.Template, error) {
	return template.New(name).Option("missingkey=error").Funcs(template.FuncMap{
		"json": func(v any) (string, error) {
			text, err := json.Marshal(v)
			return string(text), err
		},
		"without": func(o object, keys ...string) object {
			o = maps.Clone(o)
			for _, key := range keys {
				delete(o, key)
			}
			return o
		},
	}).Parse(string(text))
}

// A request is what a template makes a configuration of.
type request struct {
	CNIVersion string   // newest version that the peer and the delegates support
	Name       string   // of the network
	Dir        string   // existing directory, for the peer's state
	BinDir     string   // directory of the delegates
	Leases     string   // directory of the addresses that host-local has reserved
	Delegates  []object // configurations of the delegates, with name and cniVersion
}

// Delegate returns the only delegate. It fails with errOne if there are several.
func (q request) Delegate() (object, error) {
	if len(q.Delegates) != 1 {
		return nil, errOne
	}
	return q.Delegates[0], nil
}

// File writes a file in the peer's directory and returns its path.
func (q request) File(name, text string) (string, error) {
	path := filepath.Join(q.Dir, name)
	return path, os.WriteFile(path, []byte(text), 0o600)
}

// fillForm writes the peer's configuration for n delegates of a kind and returns its path.
func (r *rig) fillForm(c contender, kind string, n int) (string, error) {
	q := request{
		CNIVersion: c.version, Name: "bench", Dir: r.file("peer-" + c.program), BinDir: r.file("bin"),
		Leases: r.file("leases"), Delegates: r.delegates(kind, n),
	}
	for _, d := range q.Delegates {
		d["cniVersion"] = c.version
	}
	var b strings.Builder
	if err := c.form.Execute(&b, q); err != nil {
		return "", err
	}
	if !json.Valid([]byte(b.String())) {
		return "", fmt.Errorf("its template does not make JSON: %s", shorten(b.String()))
	}
	path := r.file(fmt.Sprintf("%s-%d-%s.json", kind, n, c.name))
	return path, os.WriteFile(path, []byte(b.String()), 0o600)
}

// greet asks the peers for the versions of CNI that they support, and adds those that
// answer to the contenders.
func (r *rig) greet(ctx context.Context) error {
	r.contenders = slices.Clone(ours)
	for _, p := range r.peers {
		c := contender{name: p.name, program: p.name}
		text, err := os.ReadFile(r.file(p.name + ".template"))
		if err != nil {
			return err
		}
		if c.form, err = parseForm(p.name, text); err != nil {
			return err
		}
		if c.version, err = r.newest(ctx, c); err == nil {
			r.contenders = append(r.contenders, c)
		} else if err := r.leaveOut(ctx, c, "everything", err); err != nil {
			return err
		}
	}
	return nil
}

// newest returns the newest version of CNI that a peer and the delegates support.
func (r *rig) newest(ctx context.Context, c contender) (string, error) {
	stdin, err := r.conf("version.json", nil)
	if err != nil {
		return "", err
	}
	ctx, cancel := c.limited(ctx)
	defer cancel()
	out, _, err := r.output(ctx, call{program: c.program, command: "VERSION", stdin: stdin}, nil)
	if err != nil {
		return "", err
	}
	var answer struct {
		SupportedVersions []string `json:"supportedVersions"`
	}
	if err := json.Unmarshal(out, &answer); err != nil {
		return "", fmt.Errorf("VERSION printed %s: %w", shorten(string(out)), err)
	}
	for _, v := range []string{"1.1.0", "1.0.0", "0.4.0", "0.3.1"} {
		if slices.Contains(answer.SupportedVersions, v) {
			return v, nil
		}
	}
	return "", fmt.Errorf("it supports CNI %s, the delegates 0.3.1 to 1.1.0", strings.Join(answer.SupportedVersions, ", "))
}

// limited returns a context that ends a peer that does not answer. The other contenders
// have no limit.
func (c contender) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.form == nil {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer within %s", limit))
}

// leaveOut notes that a contender is left out of a measurement because of err. It returns
// an error if that must not happen: if c is not a peer, or ctx has ended.
func (r *rig) leaveOut(ctx context.Context, c contender, what string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if c.form == nil {
		return err
	}
	if errors.Is(err, errOne) {
		what, err = "several delegates", errOne
	}
	note := fmt.Sprintf("%s, %s: %s", c.name, what, shorten(err.Error()))
	if !slices.Contains(r.notes, note) {
		r.notes = append(r.notes, note)
	}
	return nil
}

// shorten returns text in one line of moderate length.
func shorten(text string) string {
	line := []rune(strings.Join(strings.Fields(text), " "))
	if len(line) > 300 {
		line = append(line[:300], '…')
	}
	return string(line)
}
