/* A vendor's library that takes its helper over: it answers in its stead, with the bytes of a file.

   With XCE_EVIL_COUNT set, every "NNNNNN" in them is another number each time. XCE_EVIL_ROLE names
   the one process that is taken over. XCE_EVIL_MODE says what else is done than to answer:
   "flood" sends without being asked, "descriptor" sends one along, "hang" answers nothing.
   The timer that would end it is put out. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static char bytes[1 << 18], asked[1 << 18];

static ssize_t send_with_descriptor(int to, size_t length)
{
    char room[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec data = {bytes, length};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1,
                             .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &(int){0}, sizeof(int));
    return sendmsg(to, &message, 0);
}

__attribute__((constructor)) static void take_over(void)
{
    const char *role = getenv("XCE_EVIL_ROLE"), *mode = getenv("XCE_EVIL_MODE");
    char name[16] = "";

    prctl(PR_GET_NAME, name);
    if (role && strcmp(role, name))
        return;

    FILE *file = fopen(getenv("XCE_EVIL"), "rb");
    size_t length = file ? fread(bytes, 1, sizeof bytes, file) : 0;
    int socket_of_ours = -1, number = 0;

    for (int fd = 0; fd < 256; fd++) {
        int type = 0;
        socklen_t size = sizeof type;
        if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET)
            socket_of_ours = fd;
    }
    mode = mode ? mode : "";
    for (int timer = 0; timer < 16; timer++)
        syscall(SYS_timer_settime, timer, 0, (long[4]){0}, NULL);
    while (!strcmp(mode, "hang"))
        pause();
    for (;;) {
        if (getenv("XCE_EVIL_COUNT"))
            for (size_t at = 0; at + 6 <= length; at++)
                if (bytes[at] == 'N' && !memcmp(bytes + at, "NNNNNN", 6)) {
                    char digits[8];
                    memcpy(asked, bytes, length);
                    snprintf(digits, sizeof digits, "%06d", number++ % 1000000);
                    memcpy(asked + at, digits, 6);
                }
        if (!strcmp(mode, "descriptor")) {
            if (send_with_descriptor(socket_of_ours, length) < 0)
                _exit(0);
        } else if (send(socket_of_ours, getenv("XCE_EVIL_COUNT") ? asked : bytes, length, 0) < 0)
            _exit(0);
        if (strcmp(mode, "flood") && recv(socket_of_ours, asked, sizeof asked, 0) <= 0)
            _exit(0);
    }
}
