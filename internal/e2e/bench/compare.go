//go:build linux

package main

import (
	"context"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
)

const (
	noop     = "noop"
	bridge   = "bridge" // with host-local
	resident = "resident"
)

// A contender does the work in one way. The others are compared with the first.
type contender struct {
	name, program string
	conf          func(kind string, n int) object
}

// contest returns an empty table with a column for each contender.
func contest(contenders []contender) *table {
	t := &table{text: 3, head: []string{"delegates", "N", "command"}}
	for _, c := range contenders {
		t.head = append(t.head, c.name)
	}
	return t
}

// compare lets contenders attach and detach each kind of delegates in turn, and adds the
// times to t.
func (r *rig) compare(ctx context.Context, t *table, contenders []contender, kinds []string, newPod func() (pod, error)) error {
	order := rand.New(rand.NewPCG(1, 2))
	for _, kind := range kinds {
		for _, n := range []int{1, 8} {
			stdin := make([]string, len(contenders))
			for i, c := range contenders {
				var err error
				if stdin[i], err = r.conf(c.name, c.conf(kind, n)); err != nil {
					return err
				}
			}
			took := map[string][][]float64{"ADD": make([][]float64, len(contenders)), "DEL": make([][]float64, len(contenders))}
			for round := range r.rounds + 1 {
				for _, i := range order.Perm(len(contenders)) {
					p, err := newPod()
					if err != nil {
						return err
					}
					for _, command := range []string{"ADD", "DEL"} {
						ms, err := r.run(ctx, call{program: contenders[i].program, command: command, pod: p, stdin: stdin[i]})
						if err != nil {
							return errors.Join(err, r.sweep())
						}
						if round > 0 {
							took[command][i] = append(took[command][i], ms)
						}
					}
				}
				if err := r.sweep(); err != nil {
					return err
				}
			}
			for _, command := range []string{"ADD", "DEL"} {
				t.row(append([]string{kind, strconv.Itoa(n), command}, compared(took[command])...)...)
			}
		}
	}
	return nil
}

// thin compares meta-plugins that are executed.
func (r *rig) thin(ctx context.Context, w io.Writer) error {
	plain := func(kind string, n int) object { return object{"delegates": r.delegates(kind, n)} }
	contenders := []contender{
		{"floor", "floor", plain},
		{"skel+libcni", "libcni", plain},
		{"multinet", "multinet", plain},
		{"multinet, parallel", "multinet", func(kind string, n int) object {
			return object{"delegates": r.delegates(kind, n), "parallel": true}
		}},
	}
	for _, name := range slices.Sorted(maps.Keys(r.peers)) {
		contenders = append(contenders, contender{name, name, func(kind string, n int) object {
			return object{"type": name, "cniDir": r.file(name + "-state"), "delegates": r.delegates(kind, n)}
		}})
	}
	stdin, err := r.conf("version", nil)
	if err != nil {
		return err
	}
	t := contest(contenders)
	version := make([][]float64, len(contenders))
	for range r.rounds {
		for i, c := range contenders {
			ms, err := r.run(ctx, call{program: c.program, command: "VERSION", stdin: stdin})
			if err != nil {
				return err
			}
			version[i] = append(version[i], ms)
		}
	}
	t.row(append([]string{"none", "", "VERSION"}, compared(version)...)...)
	if err := r.compare(ctx, t, contenders, []string{noop, bridge}, r.pod); err != nil {
		return err
	}
	return t.print(w, "## Meta-plugins, ms\n\nIn parentheses: ratio to floor in the same round.")
}
