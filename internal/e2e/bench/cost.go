//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"text/template"
)

type object = map[string]any

// A contender is a meta-plugin to measure.
type contender struct {
	name, program string
	parallel      bool               // multinet's key
	form          *template.Template // a peer's configuration, otherwise nil
	version       string             // of CNI, of a peer's configuration
}

// ours are the contenders that are always measured. The others are compared with the
// first.
var ours = []contender{ //nolint:gochecknoglobals // a table
	{name: "floor", program: "floor"},
	{name: "skel+libcni", program: "libcni"},
	{name: "multinet", program: "multinet"},
	{name: "multinet, parallel", program: "multinet", parallel: true},
}

const (
	noop   = "no-op"
	bridge = "bridge+host-local"
)

// kinds returns the kinds of delegates that can run.
func (r *rig) kinds() []string {
	if r.hosted {
		return []string{noop, bridge}
	}
	return []string{noop}
}

// delegates returns n delegates of a kind.
func (r *rig) delegates(kind string, n int) []object {
	list := make([]object, n)
	for i := range list {
		name := "net-" + strconv.Itoa(i)
		list[i] = object{"type": "noop", "name": name}
		switch kind {
		case resident:
			list[i] = object{"type": resident, "name": name, "addresses": []string{"192.0.2.2/24"}}
		case bridge:
			list[i] = object{
				"type": "bridge", "name": name, "bridge": "br" + strconv.Itoa(i), "isGateway": true,
				"ipam": object{
					"type": "host-local", "dataDir": r.file("leases"),
					"ranges": [][]object{{{"subnet": fmt.Sprintf("10.%d.0.0/16", i)}}},
				},
			}
		}
	}
	return list
}

// conf writes a configuration for any contender, with keys added, and returns
// its path.
func (r *rig) conf(name string, keys object) (string, error) {
	conf := object{
		"cniVersion": "1.1.0", "name": "bench", "type": "multinet",
		"cniDir": r.file("state"), "confDir": r.file("net.d"), "binDir": r.file("bin"), // multinet's
		"cacheDir": r.file("cache"), // libcni's
	}
	maps.Copy(conf, keys)
	text, err := json.Marshal(conf)
	if err != nil {
		return "", err
	}
	path := r.file(name)
	return path, os.WriteFile(path, text, 0o600)
}

// A task is a kind and number of delegates, and their cost for each contender
// in each round.
type task struct {
	kind  string
	n     int
	stdin []string // empty: the contender is left out, and has no samples
	add   [][]sample
	del   [][]sample
}

// cost lets the contenders attach and detach every kind and number of
// delegates.
func (r *rig) cost(ctx context.Context) ([]*task, error) {
	var tasks []*task
	for _, kind := range r.kinds() {
		for _, n := range r.ns {
			t := &task{kind: kind, n: n, add: make([][]sample, len(r.contenders)), del: make([][]sample, len(r.contenders))}
			for _, c := range r.contenders {
				path, err := r.stdin(c, kind, n)
				if err != nil {
					if err := r.leaveOut(ctx, c, t.String(), err); err != nil {
						return nil, err
					}
					path = ""
				}
				t.stdin = append(t.stdin, path)
			}
			tasks = append(tasks, t)
		}
	}
	order := rand.New(rand.NewPCG(1, 2))
	for round := range r.rounds + 1 {
		for _, t := range tasks {
			if err := r.round(ctx, t, order.Perm(len(r.contenders)), round > 0); err != nil {
				return nil, err
			}
		}
	}
	return tasks, nil
}

func (t *task) String() string { return fmt.Sprintf("%s, N=%d", t.kind, t.n) }

// stdin writes a contender's configuration for n delegates of a kind and returns its
// path.
func (r *rig) stdin(c contender, kind string, n int) (string, error) {
	if c.form != nil {
		return r.fillForm(c, kind, n)
	}
	keys := object{"delegates": r.delegates(kind, n)}
	if c.parallel {
		keys["parallel"] = true
	}
	return r.conf(fmt.Sprintf("%s-%d-%s.json", kind, n, c.name), keys)
}

// round runs t once for each contender, in the given order. A peer that fails is left
// out of t from then on.
func (r *rig) round(ctx context.Context, t *task, order []int, counts bool) (err error) {
	runtime.GC()
	defer func() { err = errors.Join(err, r.sweep()) }()
	for _, i := range order {
		if t.stdin[i] == "" {
			continue
		}
		c := r.contenders[i]
		limited, cancel := c.limited(ctx)
		add, del, err := r.cycle(limited, c.program, t.stdin[i])
		cancel()
		if err != nil {
			if err := r.leaveOut(ctx, c, t.String(), err); err != nil {
				return err
			}
			t.stdin[i], t.add[i], t.del[i] = "", nil, nil
			continue
		}
		if counts {
			t.add[i], t.del[i] = append(t.add[i], add), append(t.del[i], del)
		}
	}
	return nil
}

// cycle attaches and detaches a new container with program. The container's
// network namespace stays until the next sweep.
func (r *rig) cycle(ctx context.Context, program, stdin string) (add, del sample, err error) {
	p, err := r.pod()
	if err != nil {
		return add, del, err
	}
	c := call{program: program, command: "ADD", pod: p, stdin: stdin}
	if add, err = r.run(ctx, c); err != nil {
		c.command = "DEL"
		_, _ = r.run(ctx, c) // of what it has attached; the error of the ADD matters
		return add, del, err
	}
	c.command = "DEL"
	del, err = r.run(ctx, c)
	return add, del, err
}

// printCost prints one figure of all tasks as a table.
func (r *rig) printCost(w io.Writer, title string, tasks []*task, figureOf func(sample) float64) error {
	t := table{text: 3, head: []string{"delegates", "N", "command"}}
	for _, c := range r.contenders {
		t.head = append(t.head, c.name)
	}
	for _, task := range tasks {
		for _, c := range []struct {
			name    string
			samples [][]sample
		}{{"ADD", task.add}, {"DEL", task.del}} {
			row := []string{task.kind, strconv.Itoa(task.n), c.name}
			floor := of(c.samples[0], figureOf)
			row = append(row, figure(median(floor)))
			for _, s := range c.samples[1:] {
				if len(s) == 0 {
					row = append(row, "–")
					continue
				}
				values := of(s, figureOf)
				row = append(row, times(median(values), ratio(values, floor)))
			}
			t.row(row...)
		}
	}
	return t.print(w, title)
}
