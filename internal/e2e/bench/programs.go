//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"time"
)

// A program is a program to start, and the meta-plugin that it is, if it is one.
type program struct {
	call
	contender contender
	out       bool // it is left out, as it failed
}

// programs prints the cost of the programs without delegates, and their memory.
func (r *rig) programs(ctx context.Context, w io.Writer) error {
	nothing, err := r.conf("nothing.json", nil)
	if err != nil {
		return err
	}
	var programs []*program
	for _, c := range append([]contender{{name: "noop", program: "noop"}}, r.contenders...) {
		if !c.parallel {
			programs = append(programs, &program{call: call{program: c.program, command: "VERSION", stdin: nothing}, contender: c})
		}
	}
	for _, c := range []call{
		{program: "multinet-shim", command: "VERSION", stdin: nothing},
		{program: "multinetd", args: []string{"--version"}, stdin: nothing},
	} {
		programs = append(programs, &program{call: c})
	}
	version, alone, err := r.versions(ctx, programs)
	if err != nil {
		return err
	}
	most := r.ns[len(r.ns)-1]
	t := table{text: 1, head: []string{
		"program", "size, MB", "stripped", "VERSION, ms", "CPU, ms", "page faults",
		"memory, MB", fmt.Sprintf("ADD, N=%d", r.ns[0]), fmt.Sprintf("N=%d", most),
	}}
	floor := version[1]
	for i, p := range programs {
		if p.out {
			continue
		}
		row := []string{p.program}
		for _, dir := range []string{"bin", "stripped"} {
			bytes, err := size(r.file(dir, p.program))
			switch {
			case err == nil:
				row = append(row, mb(float64(bytes)))
			case p.contender.form != nil: // the user has stripped it or has not
				row = append(row, "–")
			default:
				return err
			}
		}
		for _, f := range []func(sample) float64{wall, cpu, faults} {
			values := of(version[i], f)
			row = append(row, times(median(values), ratio(values, of(floor, f))))
		}
		memory, err := r.memory(ctx, p, r.ns[0], most)
		if err != nil {
			return err
		}
		t.row(append(row, memory...)...)
	}
	if err := t.print(w, "### Programs\n\nMemory is the peak of the resident set of the program alone; its delegates "+
		"do nothing. multinetd prints its version. In parentheses: ratio to floor."); err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "\nnoop alone, the cost of starting and ending a process: %s ms, %s ms of CPU, %s page faults.\n",
		figure(median(of(alone, wall))), figure(median(of(alone, cpu))), figure(median(of(alone, faults))))
	return err
}

// versions runs the programs in turn, and noop as a plugin.
func (r *rig) versions(ctx context.Context, programs []*program) (version [][]sample, alone []sample, err error) {
	version = make([][]sample, len(programs))
	order := rand.New(rand.NewPCG(1, 2))
	for round := range r.rounds + 1 {
		runtime.GC()
		for _, i := range order.Perm(len(programs)) {
			p := programs[i]
			if p.out {
				continue
			}
			limited, cancel := p.contender.limited(ctx)
			s, err := r.run(limited, p.call)
			cancel()
			if err != nil {
				if err := r.leaveOut(ctx, p.contender, "VERSION", err); err != nil {
					return nil, nil, err
				}
				p.out = true
			}
			version[i] = append(version[i], s)
		}
		s, err := r.run(ctx, call{program: "noop", command: "ADD", pod: pod{id: "c1", netns: "/c1"}, stdin: programs[0].stdin})
		if err != nil {
			return nil, nil, err
		}
		if alone = append(alone, s); round == 0 {
			clear(version)
			alone = nil
		}
	}
	return version, alone, nil
}

// memory returns the cells for the memory of p: alone, and in ADDs of few and of most
// delegates that do nothing.
func (r *rig) memory(ctx context.Context, p *program, few, most int) (cells []string, err error) {
	calls := []call{p.call}
	for _, n := range []int{few, most} {
		c := call{program: p.program, command: "ADD"}
		if p.contender.program != "" { // otherwise it is a daemon, or needs one
			if c.stdin, err = r.stdin(p.contender, noop, n); err != nil {
				if err := r.leaveOut(ctx, p.contender, fmt.Sprintf("%s, N=%d", noop, n), err); err != nil {
					return nil, err
				}
			}
		}
		calls = append(calls, c)
	}
	for _, c := range calls {
		if c.stdin == "" {
			cells = append(cells, "–")
			continue
		}
		limited, cancel := p.contender.limited(ctx)
		peak, err := r.peaks(limited, c)
		cancel()
		if err != nil {
			if err := r.leaveOut(ctx, p.contender, "memory", err); err != nil {
				return nil, err
			}
			cells = append(cells, "–")
			continue
		}
		cells = append(cells, peak.String())
	}
	return cells, nil
}

// peaks returns the highest of several peaks. It detaches what c attaches.
func (r *rig) peaks(ctx context.Context, c call) (highest peak, err error) {
	defer func() { err = errors.Join(err, r.sweep()) }()
	start := time.Now()
	for i := 0; i < min(r.rounds, 5) && (i == 0 || time.Since(start) < enough); i++ {
		if c.command == "ADD" {
			if c.pod, err = r.pod(); err != nil {
				return highest, err
			}
		}
		p, err := r.peak(ctx, c)
		if err == nil && c.command == "ADD" {
			del := c
			del.command = "DEL"
			_, err = r.run(ctx, del)
		}
		if err != nil {
			return highest, err
		}
		if p.bytes > highest.bytes {
			highest = p
		}
	}
	return highest, nil
}
