/* A vendor's library that takes its prober over: it answers in its stead, with the bytes of a file.

   With XCE_EVIL_COUNT set, every "NNNNNN" in them is another number each time. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static char bytes[1 << 18], asked[1 << 18];

__attribute__((constructor)) static void take_over(void)
{
    FILE *file = fopen(getenv("XCE_EVIL"), "rb");
    size_t length = file ? fread(bytes, 1, sizeof bytes, file) : 0;
    int socket_of_ours = -1, number = 0;

    for (int fd = 0; fd < 256; fd++) {
        int type = 0;
        socklen_t size = sizeof type;
        if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET)
            socket_of_ours = fd;
    }
    for (;;) {
        if (getenv("XCE_EVIL_COUNT"))
            for (size_t at = 0; at + 6 <= length; at++)
                if (bytes[at] == 'N' && !memcmp(bytes + at, "NNNNNN", 6)) {
                    char digits[8];
                    memcpy(asked, bytes, length);
                    snprintf(digits, sizeof digits, "%06d", number++ % 1000000);
                    memcpy(asked + at, digits, 6);
                }
        if (send(socket_of_ours, getenv("XCE_EVIL_COUNT") ? asked : bytes, length, 0) < 0 ||
            recv(socket_of_ours, asked, sizeof asked, 0) <= 0)
            _exit(0);
    }
}
