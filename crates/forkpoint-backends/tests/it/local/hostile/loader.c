// Runs in place of the loader of a program of the host, and tries to change that program.
#include <fcntl.h>
#include <sys/syscall.h>

static long call(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c)
                     : "rcx", "r11", "memory");
    return result;
}

static void say(long worked) {
    if (worked)
        call(SYS_write, 1, (long)" CHANGED", 8);
    else
        call(SYS_write, 1, (long)" refused", 8);
}

void _start(void) {
    call(SYS_write, 1, (long)"ran", 3);
    long fd = call(SYS_open, (long)"/proc/self/exe", O_RDONLY, 0);
    say(call(SYS_fchmod, fd, 0777, 0) == 0);
    say(call(SYS_open, (long)"/proc/self/exe", O_WRONLY, 0) >= 0);
    call(SYS_write, 1, (long)"\n", 1);
    call(SYS_exit, 0, 0, 0);
}
