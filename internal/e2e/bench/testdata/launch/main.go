// Launch runs a program and writes to file descriptor 3 the peak memory of the
// program and of launch itself, in KB.
//
// A program's ru_maxrss starts with the memory of the process that forked it, so
// that process must be small.
package main

import (
	"bytes"
	"os"
	"runtime"
	"strconv"
	"syscall"
)

func main() {
	runtime.LockOSThread() // the program is killed when the thread ends
	p, err := os.StartProcess(os.Args[1], os.Args[1:], &os.ProcAttr{
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
		Sys:   &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		os.Exit(1)
	}
	state, err := p.Wait()
	if err != nil || !state.Success() {
		os.Exit(1)
	}
	usage, _ := state.SysUsage().(*syscall.Rusage)
	text, _ := os.ReadFile("/proc/self/status")
	_, after, _ := bytes.Cut(text, []byte("VmHWM:"))
	_, err = os.NewFile(3, "3").WriteString(strconv.FormatInt(usage.Maxrss, 10) + " " + string(bytes.Fields(after)[0]))
	if err != nil {
		os.Exit(1)
	}
}
