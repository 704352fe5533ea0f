package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// step logs that the fake has reached phase (see Step in internal/durable). If
// the test wants a kill there, step kills the plugin that runs the fake, and
// the fake itself unless the fake is to survive as an orphan.
func step(conf config, phase string) error {
	steps := os.Getenv("METACNI_STEPS")
	if steps == "" {
		return nil
	}
	what := strings.Join([]string{os.Getenv("CNI_COMMAND"), conf.ID, phase}, " ")
	if err := appendLine(steps, fmt.Sprintln(os.Getpid(), what)); err != nil {
		return err
	}
	if what != os.Getenv("METACNI_STEPS_KILL") {
		return nil
	}
	if err := appendLine(steps, fmt.Sprintln(os.Getppid(), "killed")); err != nil {
		return err
	}
	if err := syscall.Kill(os.Getppid(), syscall.SIGKILL); err != nil {
		return err
	}
	if os.Getenv("METACNI_STEPS_ORPHAN") == "" {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		pause()
	}
	return nil
}

// alone logs a complaint if another fake works on the same container: each
// holds the container's file until it exits. With "parallel" only the ADDs of
// the first interface, and calls for the same interface, must be alone.
func alone(conf config) error {
	container, ifname := os.Getenv("CNI_CONTAINERID"), os.Getenv("CNI_IFNAME")
	if container == "" {
		return nil
	}
	if !conf.Parallel {
		return hold(conf, "busy@"+container, syscall.LOCK_EX)
	}
	how := syscall.LOCK_SH
	if ifname == "eth0" && os.Getenv("CNI_COMMAND") == "ADD" {
		how = syscall.LOCK_EX
	}
	return errors.Join(hold(conf, "busy@"+container, how), hold(conf, "busy@"+container+"@"+ifname, syscall.LOCK_EX))
}

// hold locks a file until the process exits. If another process has the lock,
// hold logs a complaint that names the process whose number is in the file.
func hold(conf config, name string, how int) error {
	f, err := os.OpenFile(filepath.Join(conf.Dir, name), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	for {
		err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return err
		}
		others, err := os.ReadFile(f.Name())
		if err != nil {
			return err
		}
		for pid := range strings.FieldsSeq(string(others)) {
			if !exiting(pid) {
				return appendLine(filepath.Join(conf.Dir, "beside"), fmt.Sprintln(os.Getenv("CNI_COMMAND"), conf.ID, name, "beside", pid))
			}
		}
	}
	if how == syscall.LOCK_EX {
		if err := f.Truncate(0); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintln(f, os.Getpid())
	return err // f stays open until the process exits
}

// exiting reports whether a process is on its way out, in each of its threads, even if the kernel
// has not closed its files yet.
func exiting(pid string) bool {
	threads, _ := os.ReadDir("/proc/" + pid + "/task") // none of a process that has gone
	for _, thread := range threads {
		const exiting = 4 // PF_EXITING
		fields := stat(pid + "/task/" + thread.Name())
		if fields == nil {
			continue
		}
		if flags, err := strconv.Atoi(fields[6]); err != nil || flags&exiting == 0 {
			return false
		}
	}
	return true
}

func appendLine(file, line string) error {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line)
	return errors.Join(err, f.Close())
}
