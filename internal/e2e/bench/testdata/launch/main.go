// Launch runs a program and writes to file 3 the most memory that the program
// had, and the most that launch itself did, in KB.
//
// The kernel begins to count a program's ru_maxrss with what the process had
// that it was forked from: so that must be a small one.
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
