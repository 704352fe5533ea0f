//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"
)

// measure runs all measurements and prints them.
func measure(ctx context.Context, r *rig, w io.Writer) error {
	unix.Sync()            // write the programs to disk before a clock runs
	debug.SetGCPercent(-1) // runtime.GC runs between the rounds
	line, err := r.machine()
	if err != nil {
		return err
	}
	fmt.Fprintln(w, line)
	if err := r.greet(ctx); err != nil {
		return err
	}
	if err := r.programs(ctx, w); err != nil {
		return err
	}
	tasks, err := r.cost(ctx)
	if err != nil {
		return err
	}
	if err := r.printCost(w, "### Time, ms\n\nIn parentheses: ratio to floor in the same round.", tasks, wall); err != nil {
		return err
	}
	if err := r.printCost(w, "### CPU, ms\n\nUser and system time, including the delegates.", tasks, cpu); err != nil {
		return err
	}
	if len(r.notes) > 0 {
		fmt.Fprintf(w, "\nNot measured:\n\n- %s\n", strings.Join(r.notes, "\n- "))
	}
	if err := r.cluster(ctx, w); err != nil {
		return err
	}
	if err := r.grow(ctx, w); err != nil {
		return err
	}
	if r.plot == "" {
		return nil
	}
	if err := os.WriteFile(r.plot, draw(r.contenders, panels(r.contenders, tasks)), 0o644); err != nil {
		return err
	}
	path, err := filepath.Abs(r.plot)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, "\nDrawn: "+path)
	return err
}
