package kube

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unsafe"

	bpf "github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// A security is the rights of a container.
type security struct {
	user         uint32
	capabilities []string // with CAP_; all if privileged
	privileged   bool
	noNewPrivs   bool
	seccomp      bool // RuntimeDefault
	appArmor     bool // RuntimeDefault, which is also the default
	readOnlyRoot bool
}

// securityOf returns the rights of a container of a pod, as the kubelet and a runtime read it.
func securityOf(pod *corev1.Pod, c corev1.Container) (may security) {
	of, all := c.SecurityContext, pod.Spec.SecurityContext
	if of == nil {
		of = &corev1.SecurityContext{}
	}
	if all == nil {
		all = &corev1.PodSecurityContext{}
	}
	set := func(flag *bool) bool { return flag != nil && *flag }
	profile := all.SeccompProfile
	if of.SeccompProfile != nil {
		profile = of.SeccompProfile
	}
	may = security{
		privileged: set(of.Privileged), noNewPrivs: of.AllowPrivilegeEscalation != nil && !*of.AllowPrivilegeEscalation,
		seccomp: profile != nil && profile.Type == corev1.SeccompProfileTypeRuntimeDefault, readOnlyRoot: set(of.ReadOnlyRootFilesystem),
	}
	armor := all.AppArmorProfile
	if of.AppArmorProfile != nil {
		armor = of.AppArmorProfile
	}
	may.appArmor = !may.privileged && (armor == nil || armor.Type == corev1.AppArmorProfileTypeRuntimeDefault)
	if user := all.RunAsUser; user != nil {
		may.user = uint32(*user)
	}
	changed := of.Capabilities
	if changed == nil {
		changed = &corev1.Capabilities{}
	}
	if !slices.Contains(changed.Drop, "ALL") {
		for name := range strings.FieldsSeq("CHOWN DAC_OVERRIDE FSETID FOWNER MKNOD NET_RAW SETGID SETUID SETFCAP SETPCAP NET_BIND_SERVICE SYS_CHROOT KILL AUDIT_WRITE") {
			may.capabilities = append(may.capabilities, "CAP_"+name)
		}
	}
	for _, name := range changed.Add {
		may.capabilities = append(may.capabilities, "CAP_"+string(name))
	}
	return may
}

// capabilities are the names of all that a DaemonSet of the tests has, in the kernel's order.
var capabilities = strings.Fields(`CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE
	NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT
	SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE
	MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE`)

// confine takes from this thread what the container may not do. A program that it starts has
// the capabilities of its bounding set, because root starts it.
func (may security) confine() error {
	if !may.privileged {
		for i, name := range capabilities {
			if slices.Contains(may.capabilities, "CAP_"+name) {
				continue
			}
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(i), 0, 0, 0); err != nil {
				return fmt.Errorf("drop CAP_%s: %w", name, err)
			}
		}
	}
	if may.seccomp {
		filter, err := may.filter()
		if err == nil {
			err = bpf.LoadFilter(filter)
		}
		if err != nil {
			return fmt.Errorf("seccomp: %w", err)
		}
	}
	if may.appArmor {
		if err := seeOnlyOwn(); err != nil && !errors.Is(err, errors.ErrUnsupported) {
			return fmt.Errorf("landlock: %w", err)
		}
	}
	if may.noNewPrivs {
		return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	}
	return nil
}

// filter returns the filter of a container with RuntimeDefault: the profile of Docker, which
// containerd and CRI-O have as well.
func (may security) filter() (bpf.Filter, error) {
	profile, err := seccomp.GetDefaultProfile(&specs.Spec{
		Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: may.capabilities}}, Linux: &specs.Linux{},
	})
	if err != nil {
		return bpf.Filter{}, err
	}
	own, err := arch.GetInfo("")
	if err != nil {
		return bpf.Filter{}, err
	}
	operations := map[specs.LinuxSeccompOperator]bpf.Operation{
		specs.OpEqualTo: bpf.Equal, specs.OpNotEqual: bpf.NotEqual, specs.OpLessThan: bpf.LessThan,
		specs.OpLessEqual: bpf.LessOrEqual, specs.OpGreaterThan: bpf.GreaterThan, specs.OpGreaterEqual: bpf.GreaterOrEqual,
		specs.OpMaskedEqual: bpf.BitsNotSet, // all are compared with 0
	}
	// A group is complete for the system calls that it has.
	always := map[bpf.Action][]string{}
	var some []bpf.NameWithConditions
	for _, rule := range profile.Syscalls {
		action := bpf.ActionAllow
		if rule.Action == specs.ActErrno {
			action = bpf.ActionErrno | bpf.Action(*rule.ErrnoRet)
		} else if rule.Action != specs.ActAllow {
			return bpf.Filter{}, fmt.Errorf("an action that these tests do not know: %s", rule.Action)
		}
		var conditions bpf.ArgumentConditions
		for _, arg := range rule.Args {
			operation, known := operations[arg.Op]
			if !known || action != bpf.ActionAllow || arg.Op == specs.OpMaskedEqual && arg.ValueTwo != 0 {
				return bpf.Filter{}, fmt.Errorf("a condition that these tests do not know: %s", arg.Op)
			}
			conditions = append(conditions, bpf.Condition{Argument: uint32(arg.Index), Operation: operation, Value: arg.Value})
		}
		for _, name := range rule.Names {
			switch _, known := own.SyscallNames[name]; {
			case !known: // another architecture has it
			case conditions != nil:
				some = append(some, bpf.NameWithConditions{Name: name, Conditions: conditions})
			case !slices.Contains(always[action], name):
				always[action] = append(always[action], name)
			}
		}
	}
	policy := bpf.Policy{DefaultAction: bpf.ActionErrno}
	for action, names := range always {
		policy.Syscalls = append(policy.Syscalls, bpf.SyscallGroup{Names: names, Action: action})
	}
	policy.Syscalls = append(policy.Syscalls, bpf.SyscallGroup{NamesWithCondtions: some, Action: bpf.ActionAllow})
	return bpf.Filter{Policy: policy}, nil
}

// withoutHandles takes from this thread what the kernel has since Linux 6.18: it gives no file
// handles of namespaces.
func withoutHandles() error {
	return bpf.LoadFilter(bpf.Filter{Policy: bpf.Policy{DefaultAction: bpf.ActionAllow, Syscalls: []bpf.SyscallGroup{
		{Names: []string{"open_by_handle_at"}, Action: bpf.ActionErrno | bpf.Action(unix.ENOSYS)},
	}}})
}

// seeOnlyOwn takes from this thread and its children the sight of all other processes: their
// links and descriptors in /proc. AppArmor's profile for containers does that, see "ptrace" there,
// and so does Landlock, which more kernels have.
func seeOnlyOwn() error {
	rules := unix.LandlockRulesetAttr{Access_fs: unix.LANDLOCK_ACCESS_FS_MAKE_CHAR} // it has to refuse something
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&rules)), unsafe.Sizeof(rules.Access_fs), 0)
	if errno != 0 {
		return errno
	}
	defer func() { _ = unix.Close(int(fd)) }()
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0); errno != 0 {
		return errno
	}
	return nil
}
