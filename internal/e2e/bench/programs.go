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

// programs prints the cost of the programs without delegates, and their memory.
func (r *rig) programs(ctx context.Context, w io.Writer) error {
	most := r.ns[len(r.ns)-1]
	nothing, err := r.conf("nothing.json", nil)
	if err != nil {
		return err
	}
	var stdin [2]string
	for i, n := range []int{r.ns[0], most} {
		if stdin[i], err = r.conf(fmt.Sprintf("memory-%d.json", n), object{"delegates": r.delegates(noop, n)}); err != nil {
			return err
		}
	}
	programs := make([]call, 0, 6)
	for _, name := range []string{"noop", "floor", "libcni", "multinet", "multinet-shim"} {
		programs = append(programs, call{program: name, command: "VERSION", stdin: nothing})
	}
	programs = append(programs, call{program: "multinetd", args: []string{"--version"}, stdin: nothing})
	version := make([][]sample, len(programs))
	var alone []sample
	order := rand.New(rand.NewPCG(1, 2))
	for round := range r.rounds + 1 {
		runtime.GC()
		for _, i := range order.Perm(len(programs)) {
			s, err := r.run(ctx, programs[i])
			if err != nil {
				return err
			}
			version[i] = append(version[i], s)
		}
		s, err := r.run(ctx, call{program: "noop", command: "ADD", pod: pod{id: "c1", netns: "/c1"}, stdin: nothing})
		if err != nil {
			return err
		}
		if alone = append(alone, s); round == 0 {
			clear(version)
			alone = nil
		}
	}
	t := table{text: 1, head: []string{
		"program", "size, MB", "stripped", "VERSION, ms", "CPU, ms", "page faults",
		"memory, MB", fmt.Sprintf("ADD, N=%d", r.ns[0]), fmt.Sprintf("N=%d", most),
	}}
	floor := version[1]
	for i, program := range programs {
		row := []string{program.program}
		for _, dir := range []string{"bin", "stripped"} {
			bytes, err := size(r.file(dir, program.program))
			if err != nil {
				return err
			}
			row = append(row, mb(float64(bytes)))
		}
		for _, f := range []func(sample) float64{wall, cpu, faults} {
			values := of(version[i], f)
			row = append(row, times(median(values), ratio(values, of(floor, f))))
		}
		peak, err := r.peaks(ctx, program)
		if err != nil {
			return err
		}
		row = append(row, peak.String())
		for _, conf := range stdin {
			if program.command == "" || program.program == "multinet-shim" { // a daemon, and what needs one
				row = append(row, "–")
				continue
			}
			if peak, err = r.peaks(ctx, call{program: program.program, command: "ADD", stdin: conf}); err != nil {
				return err
			}
			row = append(row, peak.String())
		}
		t.row(row...)
	}
	if err := t.print(w, "### Programs\n\nMemory is the peak of the resident set of the program alone; its delegates "+
		"do nothing. multinetd prints its version. In parentheses: ratio to floor."); err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "\nnoop alone, the cost of starting and ending a process: %s ms, %s ms of CPU, %s page faults.\n",
		figure(median(of(alone, wall))), figure(median(of(alone, cpu))), figure(median(of(alone, faults))))
	return err
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
