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

// step says in the log of steps (see internal/durable) that the fake has come
// to phase, and kills who runs it if that is where the test wants it killed:
// itself as well, unless it is to live on as an orphan.
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

// alone complains when another fake works on the same container: the file it
// holds until its end is the container's.
func alone(conf config) error {
	container := os.Getenv("CNI_CONTAINERID")
	if container == "" {
		return nil
	}
	f, err := os.OpenFile(filepath.Join(conf.Dir, "busy@"+container), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return err
		}
		other, err := os.ReadFile(f.Name())
		if err != nil {
			return err
		}
		if pid := strings.TrimSpace(string(other)); pid != "" && !exiting(pid) {
			return appendLine(filepath.Join(conf.Dir, "beside"), fmt.Sprintln(os.Getenv("CNI_COMMAND"), conf.ID, container, "beside", pid))
		}
	}
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())), 0)
	return err // f is closed by the end of the process
}

// exiting reports whether a process has ended, though the kernel may not have
// closed all its files yet.
func exiting(pid string) bool {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return true
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	const exiting = 4 // PF_EXITING
	flags, err := strconv.Atoi(fields[6])
	return err == nil && flags&exiting != 0 || fields[0] == "Z" || fields[0] == "X"
}

func appendLine(file, line string) error {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line)
	return errors.Join(err, f.Close())
}
